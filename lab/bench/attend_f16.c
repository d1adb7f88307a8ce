/* Selects the variant of the binary16 baseline. */
#include "lab/bench/attend_f16.h"

#include "gpu/cpu.h"

#if defined(__x86_64__)
extern const struct attend_f16 attend_f16_avx2, attend_f16_avx512;
#endif

const struct attend_f16 *attend_f16_select(unsigned mask)
{
#if defined(__x86_64__)
    if (mask & CPU_AVX512)
        return &attend_f16_avx512;
    if (mask & CPU_AVX2)
        return &attend_f16_avx2;
#else
    (void) mask;
#endif
    return NULL;
}
