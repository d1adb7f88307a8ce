/* Matrix-vector products with AVX2, FMA and F16C; see matvec.h. Built with those flags, called after
 * detection. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m256 vec;

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline float vec_sum(vec v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline vec vec_axpy(float a, vec v, vec acc)
{
    return _mm256_fmadd_ps(_mm256_set1_ps(a), v, acc);
}

static inline vec dot8(__m128i q, const float *x, vec acc)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), _mm256_loadu_ps(x), acc);
}

static inline vec dot16(__m128i q, const float *x, vec acc)
{
    return dot8(_mm_srli_si128(q, 8), x + 8, dot8(q, x, acc));
}

static inline vec dot32(__m256i q, const float *x, vec acc)
{
    return dot16(_mm256_extracti128_si256(q, 1), x + 16, dot16(_mm256_castsi256_si128(q), x, acc));
}

static float row_f32(const uint8_t *row, size_t n, const float *x, const float *sums);
static float row_f16(const uint8_t *row, size_t n, const float *x, const float *sums);
static float row_bf16(const uint8_t *row, size_t n, const float *x, const float *sums);

#include "tools/engine/matvec_x86.h"

static float row_f32(const uint8_t *row, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float tail = 0.0f;
    size_t i = 0;

    (void) sums;
    for (; i + 8 <= n; i += 8)
        acc = _mm256_fmadd_ps(_mm256_loadu_ps((const float *) (const void *) (row + 4 * i)),
                              _mm256_loadu_ps(x + i), acc);
    for (; i < n; i++) {
        float w;

        memcpy(&w, row + 4 * i, sizeof(w));
        tail += w * x[i];
    }

    return vec_sum(acc) + tail;
}

static float row_f16(const uint8_t *row, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float tail = 0.0f;
    size_t i = 0;

    (void) sums;
    for (; i + 8 <= n; i += 8)
        acc = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (row + 2 * i))),
                              _mm256_loadu_ps(x + i), acc);
    for (; i < n; i++)
        tail += half_at(row + 2 * i) * x[i];
    return vec_sum(acc) + tail;
}

static float row_bf16(const uint8_t *row, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float tail = 0.0f;
    size_t i = 0;

    (void) sums;
    for (; i + 8 <= n; i += 8) {
        __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) (row + 2 * i)));

        acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), _mm256_loadu_ps(x + i), acc);
    }

    for (; i < n; i++)
        tail += bf16_at(row + 2 * i) * x[i];
    return vec_sum(acc) + tail;
}

const struct matvec_ops matvec_avx2 = {"avx2", rows};
