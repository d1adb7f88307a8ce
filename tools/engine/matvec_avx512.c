/* Matrix-vector products with AVX-512 F, BW, VL, DQ; see matvec.h. Built with those flags, called after
 * detection. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512 vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline float vec_sum(vec v)
{
    return _mm512_reduce_add_ps(v);
}

static inline vec vec_axpy(float a, vec v, vec acc)
{
    return _mm512_fmadd_ps(_mm512_set1_ps(a), v, acc);
}

static inline vec dot16(__m128i q, const float *x, vec acc)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), _mm512_loadu_ps(x), acc);
}

static inline vec dot32(__m256i q, const float *x, vec acc)
{
    return dot16(_mm256_extracti128_si256(q, 1), x + 16, dot16(_mm256_castsi256_si128(q), x, acc));
}

static float row_f32(const uint8_t *row, size_t n, const float *x, const float *sums);
static float row_f16(const uint8_t *row, size_t n, const float *x, const float *sums);
static float row_bf16(const uint8_t *row, size_t n, const float *x, const float *sums);

#include "tools/engine/matvec_x86.h"

/* The lanes of the 16 at @i that lie inside a row of @n. */
static inline __mmask16 lanes(size_t i, size_t n)
{
    return n - i >= 16 ? (__mmask16) 0xffff : (__mmask16) ((1u << (n - i)) - 1);
}

static float row_f32(const uint8_t *row, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();

    (void) sums;
    for (size_t i = 0; i < n; i += 16)
        acc = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes(i, n), row + 4 * i),
                              _mm512_maskz_loadu_ps(lanes(i, n), x + i), acc);
    return vec_sum(acc);
}

static float row_f16(const uint8_t *row, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();

    (void) sums;
    for (size_t i = 0; i < n; i += 16)
        acc = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(i, n), row + 2 * i)),
                              _mm512_maskz_loadu_ps(lanes(i, n), x + i), acc);
    return vec_sum(acc);
}

static float row_bf16(const uint8_t *row, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();

    (void) sums;
    for (size_t i = 0; i < n; i += 16) {
        __m512i w = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(i, n), row + 2 * i));

        acc = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)),
                              _mm512_maskz_loadu_ps(lanes(i, n), x + i), acc);
    }

    return vec_sum(acc);
}

const struct matvec_ops matvec_avx512 = {"avx512", rows};
