/* exp for any vector width; uses vec and its operations as ops_simd.h lists them. */
#pragma once

/*
 * exp(x) for x <= 0.
 *
 *     n = round(x / ln 2)
 *     f = x - n ln 2           in two steps, of which the first product is exact; |f| <= 0.347
 *     exp(x) = 2^n exp(f)      with the Taylor series to f^7
 *
 * The first term left out is below 6e-9 of the result, a tenth of a rounding.
 */
static inline __attribute__((always_inline)) vec exp_vec(vec x)
{
    vec n = vec_round(x * vec_set1(0x1.715476p+0f));
    vec f = vec_fnma(n, vec_set1(0x1.62e400p-1f), x);
    vec p = vec_set1(1.0f / 5040);

    f = vec_fnma(n, vec_set1(0x1.7f7d1cp-20f), f);
    p = vec_fma(p, f, vec_set1(1.0f / 720));
    p = vec_fma(p, f, vec_set1(1.0f / 120));
    p = vec_fma(p, f, vec_set1(1.0f / 24));
    p = vec_fma(p, f, vec_set1(1.0f / 6));
    p = vec_fma(p, f, vec_set1(0.5f));
    p = vec_fma(p, f, vec_set1(1.0f));
    p = vec_fma(p, f, vec_set1(1.0f));
    return vec_exp_scale(p, n, x);
}
