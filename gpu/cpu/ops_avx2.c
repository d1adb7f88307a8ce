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

/* The thresholds before which codes begin: 8 of them are in a register. */
static inline vec threshold_8(const float *t, unsigned b, __m256i index)
{
    vec low, high;

    if (b > 4)
        return _mm256_i32gather_ps(t, index, sizeof(*t));

    low = _mm256_permutevar8x32_ps(vec_load(t), index);
    if (b < 4)
        return low;

    high = _mm256_permutevar8x32_ps(vec_load(t + 8), index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

/* Binary search, a bit of the code per step. */
static inline __m256i quantise_8(const struct levels *l, unsigned b, const float *z)
{
    __m256i code = _mm256_setzero_si256(), minus_one = _mm256_set1_epi32(-1);
    vec x = vec_load(z);

    for (unsigned bit = 1u << (b - 1); bit > 0; bit >>= 1) {
        __m256i more = _mm256_or_si256(code, _mm256_set1_epi32((int) bit));
        vec least = threshold_8(l->threshold, b, _mm256_add_epi32(more, minus_one));

        code = _mm256_blendv_epi8(code, more, _mm256_castps_si256(_mm256_cmp_ps(x, least, _CMP_GE_OQ)));
    }
    return code;
}

static inline void quantise_16(const struct levels *l, unsigned b, const float *z, uint8_t *codes)
{
    __m256i words = _mm256_packus_epi32(quantise_8(l, b, z), quantise_8(l, b, z + 8));

    words = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0)); /* packing works within 128 bits */
    _mm_storeu_si128((void *) codes,
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline unsigned outside_8(const float *z, float low, float high)
{
    vec x = vec_load(z), below = _mm256_cmp_ps(x, vec_set1(low), _CMP_LT_OQ);

    return (unsigned) _mm256_movemask_ps(_mm256_or_ps(below, _mm256_cmp_ps(x, vec_set1(high), _CMP_GT_OQ)));
}

static inline unsigned outside_16(const float *z, float low, float high)
{
    return outside_8(z, low, high) | outside_8(z + 8, low, high) << 8;
}

static inline bool to_half_16(const float *x, void *ret)
{
    __m128i exponent = _mm_set1_epi16(0x7c00), *to = ret;
    __m128i a = _mm256_cvtps_ph(vec_load(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i b = _mm256_cvtps_ph(vec_load(x + 8), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

    _mm_storeu_si128(to, a);
    _mm_storeu_si128(to + 1, b);
    a = _mm_cmpeq_epi16(_mm_and_si128(a, exponent), exponent);
    b = _mm_cmpeq_epi16(_mm_and_si128(b, exponent), exponent);
    return _mm_movemask_epi8(_mm_or_si128(a, b)) == 0;
}

#include "gpu/cpu/convert_x86.h"
#include "gpu/cpu/ops_simd.h"

#define AVX2_OPS                                                                                             \
    .matmul = matmul_simd, .matmul_ordered = matmul_ordered_simd, .lookup = lookup_simd,                     \
    .rotate = rotate_simd, .from_half = from_half_simd, .softmax = softmax_simd,                             \
    .trellis = trellis_encode_avx2, CONVERT_OPS

const struct ops ops_avx2 = {.name = "avx2", .decode = &decode_avx2, AVX2_OPS};
const struct ops ops_avx2_vnni = {.name = "avx2-vnni", .decode = &decode_avxvnni, AVX2_OPS};
