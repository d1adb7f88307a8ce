/* The instruction sets that the kernels may use. The builtin of the compiler also considers what the
 * operating system enables, which hand-written CPUID code easily gets wrong. */
#pragma once

enum cpu_capability {
    CPU_AVX2 = 1 << 0,     /* AVX2, FMA, F16C */
    CPU_AVX512 = 1 << 1,   /* F, BW, DQ, VL */
    CPU_VNNI = 1 << 2,     /* AVX-512 VNNI */
    CPU_AVX_VNNI = 1 << 3, /* the same instructions on 256 bits, without AVX-512 */
    CPU_VBMI = 1 << 4,     /* AVX-512 VBMI */
};

static inline unsigned cpu_capabilities(void)
{
    unsigned mask = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(__clang__)
    /* clang 14 has no names for F16C and AVX-VNNI. Every CPU with AVX2 and FMA has F16C */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        mask |= CPU_AVX2;
#else
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        mask |= CPU_AVX2;
    if (__builtin_cpu_supports("avxvnni"))
        mask |= CPU_AVX_VNNI;
#endif
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        mask |= CPU_AVX512;
    if (__builtin_cpu_supports("avx512vnni"))
        mask |= CPU_VNNI;
    if (__builtin_cpu_supports("avx512vbmi"))
        mask |= CPU_VBMI;
#endif
    return mask;
}
