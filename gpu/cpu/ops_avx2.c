/* The inner loops with AVX2, FMA and F16C. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cpu/ops_x86.h"

typedef __m256 vec;

enum { VEC_LANES = 8, ROW_BLOCK = 6, VEC_BLOCK = 2 }; /* 12 sums, 2 columns, 1 factor of 16 registers */

static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}

static inline vec vec_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline float vec_largest(vec x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

static inline float vec_sum(vec x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static inline vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^n by its exponent field. */
static inline vec vec_exp_scale(vec x, vec n, vec argument)
{
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    vec keep = _mm256_cmp_ps(argument, _mm256_set1_ps(EXP_LOWEST), _CMP_GE_OQ);

    return _mm256_and_ps(x * _mm256_castsi256_ps(bits), keep);
}

static inline vec lookup_8(const struct levels *l, unsigned b, const uint8_t *codes)
{
    __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *) codes));
    const float *t = l->value;
    vec low, high;

    if (b > 4)
        return _mm256_i32gather_ps(t, index, sizeof(*t));

    low = _mm256_permutevar8x32_ps(vec_load(t), index); /* only the low 3 bits of an index count */
    if (b < 4)
        return low;

    high = _mm256_permutevar8x32_ps(vec_load(t + 8), index);
    return _mm256_blendv_ps(low, high,
                            _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))); /* bit 3 to the sign */
}

static inline void lookup_16(const struct levels *l, unsigned b, const uint8_t *codes, float *ret)
{
    vec_store(ret, lookup_8(l, b, codes));
    vec_store(ret + 8, lookup_8(l, b, codes + 8));
}

static inline void half_16(const void *x, float *ret)
{
    const __m128i *p = x;

    vec_store(ret, _mm256_cvtph_ps(_mm_loadu_si128(p)));
    vec_store(ret + 8, _mm256_cvtph_ps(_mm_loadu_si128(p + 1)));
}

#include "gpu/cpu/ops_simd.h"

#define AVX2_OPS                                                                                             \
    .matmul = matmul_simd, .matmul_ordered = matmul_ordered_simd, .lookup = lookup_simd,                     \
    .rotate = rotate_simd, .from_half = from_half_simd, .softmax = softmax_simd

const struct ops ops_avx2 = {.name = "avx2", .decode = &decode_avx2, AVX2_OPS};
const struct ops ops_avx2_vnni = {.name = "avx2-vnni", .decode = &decode_avxvnni, AVX2_OPS};
