/* Selection of the inner loops, and nothing else. */
#include "gpu/ops.h"

#include <pthread.h>

#include "gpu/cpu.h"
#include "gpu/ops_x86.h"

static const struct ops *best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct ops *ops_select(unsigned mask)
{
    const struct ops *ops = &ops_ref;

#if defined(__x86_64__)
    if (mask & CPU_AVX2)
        ops = &ops_avx2;
    if (mask & CPU_AVX512)
        ops = &ops_avx512;
    if ((mask & CPU_AVX512) && (mask & CPU_VNNI))
        ops = &ops_avx512_vnni;
#else
    (void) mask;
#endif
    return ops;
}

static void choose(void)
{
    best = ops_select(cpu_capabilities());
}

const struct ops *ops_best(void)
{
    (void) pthread_once(&once, choose);
    return best;
}
