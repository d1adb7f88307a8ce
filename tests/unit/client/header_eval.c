/* Uses the header for evaluation alone, as C99 and as C++. */
#include "client/kvcobra-eval.h"

#ifdef __cplusplus
extern "C" {
#endif
int kvcobra_eval_header_compiles(void);
#ifdef __cplusplus
}
#endif

int kvcobra_eval_header_compiles(void)
{
    kvc_eval_options o;

    o.struct_bytes = sizeof(o);
    return o.struct_bytes ? KVC_K : KVC_V;
}
