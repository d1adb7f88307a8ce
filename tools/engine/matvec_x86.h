/*
 * The rows of every block type, written over five small operations that the including file defines for its
 * vectors:
 *
 *     vec                          a vector of binary32 numbers
 *     vec_zero(), vec_sum(v)       zeros; the sum of the elements
 *     vec_axpy(a, v, acc)          acc + a v
 *     dot32(q, x, acc)             acc + products of 32 int8 with 32 binary32, in any elements
 *     dot16(q, x, acc)             the same for 16
 *
 * matvec_avx2.c and matvec_avx512.c include it, each in a static library with its own compiler flags. The
 * formats are drawn in quants.c.
 */
#pragma once

#include <immintrin.h>
#include <string.h>

#include "tools/engine/matvec.h"

static inline uint16_t load16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline float half_at(const uint8_t *p)
{
    return _cvtsh_ss(load16(p));
}

static inline float bf16_at(const uint8_t *p)
{
    uint32_t u = (uint32_t) load16(p) << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* 16 bytes to 32 numbers of 4 bits: low halves first. */
static inline __m256i unpack4(const uint8_t *q)
{
    __m128i b = _mm_loadu_si128((const __m128i *) q);
    __m256i both = _mm256_set_m128i(_mm_srli_epi16(b, 4), b);

    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* 32 bits to 32 bytes: 16 where the bit is set, else 0. */
static inline __m256i fifth_bits(const uint8_t *bits)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i select = _mm256_set1_epi64x((long long) 0x8040201008040201);
    __m256i v;
    int word;

    memcpy(&word, bits, sizeof(word));
    v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), spread), select);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, select), _mm256_set1_epi8(16));
}

static inline float sum32(const float *sums, size_t at)
{
    return sums[at / MATVEC_SUM_RUN] + sums[at / MATVEC_SUM_RUN + 1];
}

static float row_q8_0(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();

    (void) sums;
    for (size_t at = 0; at < n; at += 32, b += 34)
        acc = vec_axpy(half_at(b), dot32(_mm256_loadu_si256((const __m256i *) (b + 2)), x + at, vec_zero()),
                       acc);
    return vec_sum(acc);
}

static float row_q4_0(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    const __m256i eight = _mm256_set1_epi8(8);
    vec acc = vec_zero();

    (void) sums;
    for (size_t at = 0; at < n; at += 32, b += 18)
        acc = vec_axpy(half_at(b), dot32(_mm256_sub_epi8(unpack4(b + 2), eight), x + at, vec_zero()), acc);
    return vec_sum(acc);
}

static float row_q4_1(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float minima = 0.0f;

    for (size_t at = 0; at < n; at += 32, b += 20) {
        acc = vec_axpy(half_at(b), dot32(unpack4(b + 4), x + at, vec_zero()), acc);
        minima += half_at(b + 2) * sum32(sums, at);
    }

    return vec_sum(acc) + minima;
}

static float row_q5_0(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    const __m256i sixteen = _mm256_set1_epi8(16);
    vec acc = vec_zero();

    (void) sums;
    for (size_t at = 0; at < n; at += 32, b += 22) {
        __m256i q = _mm256_or_si256(unpack4(b + 6), fifth_bits(b + 2));

        acc = vec_axpy(half_at(b), dot32(_mm256_sub_epi8(q, sixteen), x + at, vec_zero()), acc);
    }

    return vec_sum(acc);
}

static float row_q5_1(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float minima = 0.0f;

    for (size_t at = 0; at < n; at += 32, b += 24) {
        acc = vec_axpy(half_at(b),
                       dot32(_mm256_or_si256(unpack4(b + 8), fifth_bits(b + 4)), x + at, vec_zero()), acc);
        minima += half_at(b + 2) * sum32(sums, at);
    }

    return vec_sum(acc) + minima;
}

/* Group @g (0..7) of the 4-bit numbers of Q4_K and Q5_K. */
static inline __m256i unpack_group(const uint8_t *q, unsigned g)
{
    __m256i b = _mm256_loadu_si256((const __m256i *) (q + 32 * (g / 2)));

    return _mm256_and_si256(_mm256_srli_epi16(b, 4 * (g & 1)), _mm256_set1_epi8(15));
}

static float row_q4_k(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float minima = 0.0f;

    for (size_t at = 0; at < n; at += 256, b += 144) {
        float d = half_at(b), dmin = half_at(b + 2);

        for (unsigned g = 0; g < 8; g++) {
            uint8_t s, m;

            quant_k_scale_min(b + 4, g, &s, &m);
            acc = vec_axpy(d * (float) s, dot32(unpack_group(b + 16, g), x + at + 32 * g, vec_zero()), acc);
            minima -= dmin * (float) m * sum32(sums, at + 32 * g);
        }
    }

    return vec_sum(acc) + minima;
}

static float row_q5_k(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    vec acc = vec_zero();
    float minima = 0.0f;

    for (size_t at = 0; at < n; at += 256, b += 176) {
        __m256i high = _mm256_loadu_si256((const __m256i *) (b + 16));
        float d = half_at(b), dmin = half_at(b + 2);

        for (unsigned g = 0; g < 8; g++) {
            __m256i bit = _mm256_set1_epi8((char) (1 << g));
            __m256i fifth =
                _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit), _mm256_set1_epi8(16));
            uint8_t s, m;

            quant_k_scale_min(b + 4, g, &s, &m);
            acc = vec_axpy(
                d * (float) s,
                dot32(_mm256_or_si256(unpack_group(b + 48, g), fifth), x + at + 32 * g, vec_zero()), acc);
            minima -= dmin * (float) m * sum32(sums, at + 32 * g);
        }
    }

    return vec_sum(acc) + minima;
}

static float row_q6_k(const uint8_t *b, size_t n, const float *x, const float *sums)
{
    const __m256i offset = _mm256_set1_epi8(32), four = _mm256_set1_epi8(15), two = _mm256_set1_epi8(48);
    vec acc = vec_zero();

    (void) sums;
    for (size_t at = 0; at < n; at += 256, b += 210) {
        const int8_t *scales = (const int8_t *) (b + 192);
        float d = half_at(b + 208);

        for (unsigned run = 0; run < 8; run++) {
            unsigned half = run / 4, r = run % 4;
            __m256i low = _mm256_loadu_si256((const __m256i *) (b + 64 * half + 32 * (r & 1)));
            __m256i high = _mm256_loadu_si256((const __m256i *) (b + 128 + 32 * half));
            __m256i q;

            /* bits 2r, 2r + 1 to bits 4, 5: neighbours within the 16-bit lanes are masked away */
            high = _mm256_and_si256(_mm256_slli_epi16(_mm256_srli_epi16(high, (int) (2 * r)), 4), two);
            low = _mm256_and_si256(_mm256_srli_epi16(low, r < 2 ? 0 : 4), four);
            q = _mm256_sub_epi8(_mm256_or_si256(low, high), offset);
            acc = vec_axpy(d * (float) scales[2 * run],
                           dot16(_mm256_castsi256_si128(q), x + at + 32 * run, vec_zero()), acc);
            acc = vec_axpy(d * (float) scales[2 * run + 1],
                           dot16(_mm256_extracti128_si256(q, 1), x + at + 32 * run + 16, vec_zero()), acc);
        }
    }

    return vec_sum(acc);
}

typedef float (*row_dot)(const uint8_t *row, size_t n, const float *x, const float *sums);

static row_dot row_of(uint32_t type)
{
    switch (type) {
    case QUANT_F32:
        return row_f32;
    case QUANT_F16:
        return row_f16;
    case QUANT_BF16:
        return row_bf16;
    case QUANT_Q8_0:
        return row_q8_0;
    case QUANT_Q4_0:
        return row_q4_0;
    case QUANT_Q4_1:
        return row_q4_1;
    case QUANT_Q5_0:
        return row_q5_0;
    case QUANT_Q5_1:
        return row_q5_1;
    case QUANT_Q4_K:
        return row_q4_k;
    case QUANT_Q5_K:
        return row_q5_k;
    case QUANT_Q6_K:
        return row_q6_k;
    default:
        return NULL; /* matrices of other types are never bound */
    }
}

static void rows(const struct matrix *w, size_t first, size_t n_rows, const float *x, const float *sums,
                 float *y)
{
    row_dot dot = row_of(w->type->id);

    for (size_t i = 0; i < n_rows; i++)
        y[i] = dot(w->data + (first + i) * w->row_bytes, w->n_cols, x, sums);
}
