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

#include "gpu/cpu/ops_simd.h"

#define AVX512_OPS                                                                                           \
    .matmul = matmul_simd, .matmul_ordered = matmul_ordered_simd, .lookup = lookup_simd,                     \
    .rotate = rotate_simd, .from_half = from_half_simd, .softmax = softmax_simd

const struct ops ops_avx512 = {.name = "avx512", .decode = &decode_avx2, AVX512_OPS};
const struct ops ops_avx512_vnni = {.name = "avx512-vnni", .decode = &decode_avx512, AVX512_OPS};
const struct ops ops_amx = {.name = "amx", .decode = &decode_amx, AVX512_OPS};
