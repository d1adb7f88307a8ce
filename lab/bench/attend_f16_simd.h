/*
 * The binary16 baseline for any vector width. Each attend_f16_<isa>.c defines these names and includes this
 * file once:
 *
 *     vec, VEC_LANES, VEC_BLOCK          a vector of binary32; vectors of a tile of four rows
 *     vec_load, vec_store, vec_set1, vec_fma
 *     vec_half                           VEC_LANES binary16 from memory
 *     softmax                            of ops.h, on the same instruction set
 */
#pragma once

#include <math.h>
#include <string.h>

#include "gpu/cpu/ops.h"
#include "lab/bench/attend_f16.h"

#define inline_always static inline __attribute__((always_inline))

enum { ROWS = 4, LINE = 64 };

/* C [rows, vecs] += A [rows, k] B [k, vecs], B in binary16; prefetches the cache lines of B that are
 * @prefetch_bytes bytes further on. */
inline_always void tile(size_t rows, size_t vecs, size_t k, const float *a, size_t lda, const uint16_t *b,
                        size_t ldb, size_t prefetch_bytes, float *c, size_t ldc)
{
    vec sum[ROWS][VEC_BLOCK] = {0};

    for (size_t x = 0; x < k; x++) {
        vec row[VEC_BLOCK];

#pragma GCC unroll 4
        for (size_t v = 0; v < vecs; v++) {
            const uint16_t *at = b + x * ldb + v * VEC_LANES;

            if (v * VEC_LANES * sizeof(*b) % LINE == 0)
                __builtin_prefetch((const char *) at + prefetch_bytes);
            row[v] = vec_half(at);
        }
#pragma GCC unroll 4
        for (size_t i = 0; i < rows; i++) {
            vec factor = vec_set1(a[i * lda + x]);

#pragma GCC unroll 4
            for (size_t v = 0; v < vecs; v++)
                sum[i][v] = vec_fma(factor, row[v], sum[i][v]);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vecs; v++) {
            float *at = c + i * ldc + v * VEC_LANES;

            vec_store(at, vec_load(at) + sum[i][v]);
        }
}

inline_always void stripe(size_t rows, size_t n, size_t k, const float *a, size_t lda, const uint16_t *b,
                          size_t ldb, size_t prefetch_bytes, float *c, size_t ldc)
{
    size_t j = 0;

    for (; n - j >= (size_t) VEC_BLOCK * VEC_LANES; j += (size_t) VEC_BLOCK * VEC_LANES)
        tile(rows, VEC_BLOCK, k, a, lda, b + j, ldb, prefetch_bytes, c + j, ldc);
    for (; j < n; j += 16)
        tile(rows, 16 / VEC_LANES, k, a, lda, b + j, ldb, prefetch_bytes, c + j, ldc);
}

/* C [m, n] += A [m, k] B [k, n]; n a multiple of 16. */
static void product(size_t m, size_t n, size_t k, const float *a, size_t lda, const uint16_t *b,
                    size_t prefetch_bytes, float *c, size_t ldc)
{
    for (; m >= ROWS; m -= ROWS, a += ROWS * lda, c += ROWS * ldc)
        stripe(ROWS, n, k, a, lda, b, n, prefetch_bytes, c, ldc);
    if (m == 3)
        stripe(3, n, k, a, lda, b, n, prefetch_bytes, c, ldc);
    else if (m == 2)
        stripe(2, n, k, a, lda, b, n, prefetch_bytes, c, ldc);
    else if (m == 1)
        stripe(1, n, k, a, lda, b, n, prefetch_bytes, c, ldc);
}

/* Hides the keys of the last block that are newer than the token of row @i. */
static void hide(const struct attend_f16_args *a, size_t i, float *scores)
{
    for (size_t t = CHUNK_TOKENS - (a->n_tokens - 1 - i / a->group); t < CHUNK_TOKENS; t++)
        scores[t] = -INFINITY;
}

static void attend(const struct attend_f16_args *a)
{
    float scores[ATTEND_F16_ROWS_MAX * CHUNK_TOKENS];
    struct softmax_row rows[ATTEND_F16_ROWS_MAX];
    size_t d = a->d, block = d * CHUNK_TOKENS, n_rows = a->n_tokens * a->group;

    for (size_t i = 0; i < n_rows; i++)
        rows[i] = (struct softmax_row){.max = -INFINITY};
    memset(a->out, 0, n_rows * d * sizeof(float));
    for (size_t n = 0; n < a->n_blocks; n++) {
        memset(scores, 0, n_rows * CHUNK_TOKENS * sizeof(float));
        product(n_rows, CHUNK_TOKENS, d, a->q, d, a->k + n * block, block * sizeof(uint16_t), scores,
                CHUNK_TOKENS);
        for (size_t i = 0; i < n_rows; i++) {
            float factor;

            if (n + 1 == a->n_blocks)
                hide(a, i, scores + i * CHUNK_TOKENS);
            factor = softmax(&rows[i], scores + i * CHUNK_TOKENS);
            for (size_t x = 0; factor != 1 && x < d; x++)
                a->out[i * d + x] *= factor;
        }
        product(n_rows, d, CHUNK_TOKENS, scores, CHUNK_TOKENS, a->v + n * block, block * sizeof(uint16_t),
                a->out, d);
    }
    for (size_t i = 0; i < n_rows; i++)
        for (size_t x = 0; x < d; x++)
            a->out[i * d + x] /= rows[i].sum;
}
