/* The inner loops with AVX-512 F, BW, DQ and VL. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cpu/ops_x86.h"

typedef __m512 vec;

enum { VEC_LANES = 16, ROW_BLOCK = 6, VEC_BLOCK = 4 }; /* 24 sums, 4 columns, 1 factor of 32 registers */

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}

static inline vec vec_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline float vec_largest(vec x)
{
    return _mm512_reduce_max_ps(x);
}

static inline float vec_sum(vec x)
{
    return _mm512_reduce_add_ps(x);
}

static inline vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_exp_scale(vec x, vec n, vec argument)
{
    __mmask16 keep = _mm512_cmp_ps_mask(argument, _mm512_set1_ps(EXP_LOWEST), _CMP_GE_OQ);

    return _mm512_maskz_scalef_ps(keep, x, n);
}

/* Up to 5 bits the levels are in registers; 6 bits take two such halves; for more
 * bits, 512 or 1024 bytes are gathered. */
static inline void lookup_16(const struct levels *l, unsigned b, const uint8_t *codes, float *ret)
{
    __m512i index = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *) codes));
    const float *t = l->value;
    vec low, high;

    if (b <= 4) {
        low = _mm512_permutexvar_ps(index, vec_load(t));
    } else if (b > 6) {
        low = _mm512_i32gather_ps(index, t, sizeof(*t));
    } else {
        low = _mm512_permutex2var_ps(vec_load(t), index, vec_load(t + 16));
        if (b == 6) {
            high = _mm512_permutex2var_ps(vec_load(t + 32), index, vec_load(t + 48));
            low = _mm512_mask_mov_ps(low, _mm512_test_epi32_mask(index, _mm512_set1_epi32(32)), high);
        }
    }

    vec_store(ret, low);
}

static inline void half_16(const void *x, float *ret)
{
    vec_store(ret, _mm512_cvtph_ps(_mm256_loadu_si256(x)));
}

/* The threshold before which code @index begins: in registers up to 6 bits, as in lookup_16(). */
static inline vec threshold_16(const float *t, unsigned b, __m512i index)
{
    vec low, high;

    if (b <= 4)
        return _mm512_permutexvar_ps(index, vec_load(t));
    if (b > 6)
        return _mm512_i32gather_ps(index, t, sizeof(*t));

    low = _mm512_permutex2var_ps(vec_load(t), index, vec_load(t + 16));
    if (b == 5)
        return low;

    high = _mm512_permutex2var_ps(vec_load(t + 32), index, vec_load(t + 48));
    return _mm512_mask_mov_ps(low, _mm512_test_epi32_mask(index, _mm512_set1_epi32(32)), high);
}

/* Binary search, a bit of the code per step. */
static inline void quantise_16(const struct levels *l, unsigned b, const float *z, uint8_t *codes)
{
    __m512i code = _mm512_setzero_si512(), minus_one = _mm512_set1_epi32(-1);
    vec x = vec_load(z);

    for (unsigned bit = 1u << (b - 1); bit > 0; bit >>= 1) {
        __m512i more = _mm512_or_si512(code, _mm512_set1_epi32((int) bit));
        vec least = threshold_16(l->threshold, b, _mm512_add_epi32(more, minus_one));

        code = _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), more);
    }
    _mm_storeu_si128((void *) codes, _mm512_cvtepi32_epi8(code));
}

static inline unsigned outside_16(const float *z, float low, float high)
{
    vec x = vec_load(z);

    return (unsigned) _mm512_cmp_ps_mask(x, vec_set1(low), _CMP_LT_OQ) |
           (unsigned) _mm512_cmp_ps_mask(x, vec_set1(high), _CMP_GT_OQ);
}

static inline bool to_half_16(const float *x, void *ret)
{
    __m256i exponent = _mm256_set1_epi16(0x7c00);
    __m256i h = _mm512_cvtps_ph(vec_load(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

    _mm256_storeu_si256(ret, h);
    return _mm256_cmpeq_epi16_mask(_mm256_and_si256(h, exponent), exponent) == 0;
}

#include "gpu/cpu/convert_x86.h"
#include "gpu/cpu/ops_simd.h"

#define AVX512_OPS                                                                                           \
    .matmul = matmul_simd, .matmul_ordered = matmul_ordered_simd, .lookup = lookup_simd,                     \
    .rotate = rotate_simd, .from_half = from_half_simd, .softmax = softmax_simd,                             \
    .trellis = trellis_encode_avx512, CONVERT_OPS

const struct ops ops_avx512 = {.name = "avx512", .decode = &decode_avx2, AVX512_OPS};
const struct ops ops_avx512_vnni = {.name = "avx512-vnni", .decode = &decode_avx512, AVX512_OPS};
const struct ops ops_avx512_vbmi = {.name = "avx512-vbmi", .decode = &decode_avx512vbmi, AVX512_OPS};
