/* Uses the installed headers alone, as C99 and as C++: a user of the library needs no other header. */
#include "alloc/kvcobra-alloc.h"
#include "client/kvcobra-call.h"
#include "client/kvcobra-gpu.h"
#include "client/kvcobra-llama.h"
#include "client/kvcobra-tiers.h"
#include "client/kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif
int kvcobra_header_compiles(void);
#ifdef __cplusplus
}
#endif

int kvcobra_header_compiles(void)
{
    kvc_model_id id;
    kvc_usage usage;
    kvc_solve_report report;

    id.struct_bytes = sizeof(id);
    usage.struct_bytes = sizeof(usage);
    report.struct_bytes = sizeof(report);
    return id.struct_bytes && usage.struct_bytes && report.struct_bytes && kvc_version() &&
                   kvc_alloc_version()
               ? KVC_F32
               : KVC_BF16;
}
