/*
 * Vectors and codes with the CPU's bits, for the kernels that pack and read: every element is the sum over 0, 1, 2 ... of
 * products and sums rounded to binary32, as gpu/codec.c and its matmul_ordered have it.
 *
 * A block takes one chunk of one KV head and one tile of 16 rows of a matrix: a thread has one token and eight rows, so that a
 * number read from shared memory serves eight sums, and all lanes of a warp read the same numbers of the matrix. What the matrix
 * is multiplied with stands in shared memory with tokens side by side, the columns a little apart, so that neither filling it
 * by columns nor reading it by tokens meets banks that others use.
 */
#pragma once

#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/device.h"
#include "gpu/cuda/kernels/plan.h"

enum {
    TOKENS = 64,
    ROWS = 8,                        /* of a thread */
    HALVES = PLAN_THREADS / TOKENS,  /* half-tiles of a block */
    WIDTHS = 9,
    LEVELS = 256,
    COLUMN_LD = TOKENS + 1,          /* floats between columns of vectors, which are written along a row */
    LEVEL_LD = PLAN_CODING_LD,       /* between columns of levels, which are written as fragments lie */
};

/*
 * sum[i] += m[i] x for rows i of a matrix [n_rows >= 1, n] with @ld between rows, in order; rows from n_rows on repeat the last.
 * @x: [n], @x_ld apart. @n is even and rows are aligned to 8.
 */
DEVICE void multiply(const float *m, size_t ld, uint32_t n_rows, const float *x, uint32_t x_ld, uint32_t n, float sum[ROWS])
{
    const float *row[ROWS];

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        row[i] = m + (i < n_rows ? i : n_rows - 1) * ld;
    for (uint32_t k = 0; k < n; k += 2) {
        float x0 = x[k * x_ld], x1 = x[(k + 1) * x_ld];

        UNROLL
        for (uint32_t i = 0; i < ROWS; i++) {
            struct floats2 w = load_floats2(row[i] + k);

            sum[i] = add_rounded(add_rounded(sum[i], mul_rounded(w.x, x0)), mul_rounded(w.y, x1));
        }
    }
}

/* Levels of all of a head-side's coordinates of 64 tokens to shared [r][LEVEL_LD]. Ends with a barrier. */
DEVICE void load_levels(const uint16_t *levels, const struct plan_codes *codes, const uint8_t *block, bool is_key, float *ret)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane >> 2, column = 2 * (lane & 3);

    for (uint32_t i = warp; i < 8u * codes->n_half; i += PLAN_THREADS / 32) {
        uint32_t half = i / 8, j = i % 8, pair = levels_at(levels, codes, block, half, lane, j);
        float *at = ret + (8 * half + (is_key ? column : row)) * LEVEL_LD + 8 * j + (is_key ? row : column);

        at[0] = half_to_float((uint16_t) pair);
        at[is_key ? LEVEL_LD : 1] = half_to_float((uint16_t) (pair >> 16));
    }
    __syncthreads();
}

/* Levels of one side. */
DEVICE const uint16_t *levels_of(const struct plan_table *t, bool is_key)
{
    return t->levels + (is_key ? 0 : WIDTHS * LEVELS);
}

/* Binary16 of x - mean as it was: the CPU's mean + row. */
DEVICE float exact_value(float mean, uint16_t x)
{
    return add_rounded(mean, half_to_float(x));
}
