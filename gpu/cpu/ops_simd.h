/*
 * The inner loops for any vector width. Each ops_<isa>.c includes this file once, after it has defined
 *
 *     vec, VEC_LANES        a vector of binary32
 *     ROW_BLOCK, VEC_BLOCK  the largest tile of C that fits in registers: rows x vectors
 *     vec_load, vec_store, vec_set1, vec_fma (a b + c), vec_fnma (c - a b), vec_max
 *     vec_exp_scale         (x, n): x 2^n for whole n in -126..0; 0 where the third argument is below
 *                           EXP_LOWEST
 *     vec_round             to nearest
 *     vec_largest, vec_sum  of all lanes
 *     lookup_16, half_16    16 codes to levels; 16 binary16 to binary32
 *
 * + - * on vectors are those of the compiler.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "gpu/cpu/exp_simd.h"
#include "gpu/cpu/ops.h"

#define inline_always inline __attribute__((always_inline))

/* C [rows, vecs] += A B over all k, sums in registers; rows and vecs are constants where this is inlined. */
static inline_always void tile(size_t rows, size_t vecs, bool fused, size_t k, struct matrix_in a,
                               struct matrix_in b, struct matrix_out c)
{
    vec sum[ROW_BLOCK][VEC_BLOCK] = {0};

    for (size_t x = 0; x < k; x++) {
        vec row[VEC_BLOCK];

#pragma GCC unroll 8
        for (size_t v = 0; v < vecs; v++)
            row[v] = vec_load(b.p + x * b.ld + v * VEC_LANES);
#pragma GCC unroll 8
        for (size_t i = 0; i < rows; i++) {
            vec factor = vec_set1(a.p[i * a.ld + x]);

#pragma GCC unroll 8
            for (size_t v = 0; v < vecs; v++)
                if (fused)
                    sum[i][v] = vec_fma(factor, row[v], sum[i][v]);
                else
                    sum[i][v] += factor * row[v];
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (size_t v = 0; v < vecs; v++) {
            float *at = c.p + i * c.ld + v * VEC_LANES;

            vec_store(at, vec_load(at) + sum[i][v]);
        }
}

/* All rows of C over @vecs vectors of columns. */
static inline_always void stripe(size_t m, size_t vecs, bool fused, size_t k, struct matrix_in a,
                                 struct matrix_in b, struct matrix_out c)
{
    for (; m >= ROW_BLOCK; m -= ROW_BLOCK) {
        tile(ROW_BLOCK, vecs, fused, k, a, b, c);
        a.p += ROW_BLOCK * a.ld;
        c.p += ROW_BLOCK * c.ld;
    }
    switch (m) { /* ROW_BLOCK is 6 at most */
    case 5:
        tile(5, vecs, fused, k, a, b, c);
        break;
    case 4:
        tile(4, vecs, fused, k, a, b, c);
        break;
    case 3:
        tile(3, vecs, fused, k, a, b, c);
        break;
    case 2:
        tile(2, vecs, fused, k, a, b, c);
        break;
    case 1:
        tile(1, vecs, fused, k, a, b, c);
        break;
    default:
        break;
    }
}

static inline_always void product(bool fused, size_t m, size_t n, size_t k, struct matrix_in a,
                                  struct matrix_in b, struct matrix_out c)
{
    const size_t wide = (size_t) VEC_BLOCK * VEC_LANES, middle = 2 * OPS_LANES;
    size_t j = 0;

    if (k == 0 || m == 0)
        return;
    for (; n - j >= wide; j += wide)
        stripe(m, VEC_BLOCK, fused, k, a, (struct matrix_in){b.p + j, b.ld},
               (struct matrix_out){c.p + j, c.ld});
    for (; VEC_BLOCK * VEC_LANES > 2 * OPS_LANES && n - j >= middle; j += middle)
        stripe(m, 2 * OPS_LANES / VEC_LANES, fused, k, a, (struct matrix_in){b.p + j, b.ld},
               (struct matrix_out){c.p + j, c.ld});
    for (; j < n; j += OPS_LANES)
        stripe(m, OPS_LANES / VEC_LANES, fused, k, a, (struct matrix_in){b.p + j, b.ld},
               (struct matrix_out){c.p + j, c.ld});
}

static void matmul_simd(size_t m, size_t n, size_t k, struct matrix_in a, struct matrix_in b,
                        struct matrix_out c)
{
    product(true, m, n, k, a, b, c);
}

/* Lanes are columns, so the sum of each element keeps its order;
 * -ffp-contract=off keeps products and sums apart. */
static void matmul_ordered_simd(size_t m, size_t n, size_t k, struct matrix_in a, struct matrix_in b,
                                struct matrix_out c)
{
    product(false, m, n, k, a, b, c);
}

static void lookup_simd(const struct levels *l, unsigned b, const uint8_t *codes, size_t n, float *ret)
{
    for (size_t i = 0; i < n; i += 16)
        lookup_16(l, b, codes + i, ret + i);
}

static void rotate_simd(float *lo, float *hi, const float *cos, const float *sin, size_t n)
{
    for (size_t i = 0; i < n; i += VEC_LANES) {
        vec x = vec_load(lo + i), y = vec_load(hi + i), c = vec_load(cos + i), s = vec_load(sin + i);

        vec_store(lo + i, vec_fnma(y, s, x * c));
        vec_store(hi + i, vec_fma(x, s, y * c));
    }
}

static void from_half_simd(const void *x, size_t n, float *ret)
{
    const char *at = x;
    uint16_t last[16] = {0};
    float values[16];
    size_t i;

    for (i = 0; i + 16 <= n; i += 16)
        half_16(at + i * sizeof(uint16_t), ret + i);
    if (i == n)
        return;
    memcpy(last, at + i * sizeof(uint16_t), (n - i) * sizeof(uint16_t));
    half_16(last, values);
    memcpy(ret + i, values, (n - i) * sizeof(float));
}

static float softmax_simd(struct softmax_row *row, float scores[CHUNK_TOKENS])
{
    vec top = vec_set1(row->max), sums = vec_set1(0);
    float max, factor;

#pragma GCC unroll 8
    for (size_t t = 0; t < CHUNK_TOKENS; t += VEC_LANES)
        top = vec_max(top, vec_load(scores + t));
    max = vec_largest(top);
#pragma GCC unroll 8
    for (size_t t = 0; t < CHUNK_TOKENS; t += VEC_LANES) {
        vec p = exp_vec(vec_load(scores + t) - vec_set1(max));

        vec_store(scores + t, p);
        sums += p;
    }
    factor = row->max == max ? 1 : expf(row->max - max);
    row->sum = row->sum * factor + vec_sum(sums);
    row->max = max;
    return factor;
}
