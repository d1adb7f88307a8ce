/* Selects the variant of the inner loops. See ops.h. */
#include "gpu/cpu/ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cpu.h"
#include "gpu/cpu/ops_x86.h"

static const struct ops *best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct ops *ops_select(unsigned mask)
{
    const struct ops *ops = &ops_ref;

#if defined(__x86_64__)
    if (mask & CPU_AVX2)
        ops = &ops_avx2;
    if ((mask & CPU_AVX2) && (mask & CPU_AVX_VNNI))
        ops = &ops_avx2_vnni;
    if (mask & CPU_AVX512)
        ops = &ops_avx512;
    if ((mask & CPU_AVX512) && (mask & CPU_VNNI))
        ops = &ops_avx512_vnni;
    if ((mask & CPU_AVX512) && (mask & CPU_VNNI) && (mask & CPU_VBMI))
        ops = &ops_avx512_vbmi;
#else
    (void) mask;
#endif
    return ops;
}

/*
 * Only for tests of whole programs: KVCOBRA_TEST_KERNEL names the best variant that may be chosen. An unknown
 * name, or one that this machine does not support, changes nothing; kvc_model_get_info() returns the variant
 * in use.
 */
static unsigned ops_permitted(void)
{
    static const unsigned masks[] = {
        0,
        CPU_AVX2,
        CPU_AVX2 | CPU_AVX_VNNI,
        CPU_AVX2 | CPU_AVX512,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI,
    };
    const char *name = secure_getenv("KVCOBRA_TEST_KERNEL");

    for (size_t i = 0; name && i < sizeof(masks) / sizeof(masks[0]); i++)
        if (strcmp(ops_select(masks[i])->name, name) == 0)
            return masks[i];
    return ~0u;
}

static void ops_choose(void)
{
    best = ops_select(cpu_capabilities() & ops_permitted());
}

const struct ops *ops_best(void)
{
    (void) pthread_once(&once, ops_choose);
    return best;
}
