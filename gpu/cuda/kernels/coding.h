/*
 * Encodes and decodes vectors with the same bits as the CPU, for the kernels that pack and read: every
 * element is the sum over 0, 1, 2 ... of products and sums rounded to binary32, as gpu/cpu/codec.c and its
 * matmul_ordered compute it.
 *
 * A block takes one chunk of one KV head and one tile of 32 rows of a matrix. A warp takes eight rows,
 * which are one half-tile: half of its lanes take four rows each, and a lane takes 4 of the 64 tokens. So
 * four numbers of the matrix, which lanes share, and four numbers in shared memory serve 16 sums: loads
 * cost less than the sums, which cannot be fused. In shared memory tokens are contiguous and columns are
 * padded, so that neither filling by columns nor reading by tokens has bank conflicts.
 */
#pragma once

#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/device.h"
#include "gpu/cuda/kernels/launch.h"

enum {
    TOKENS = 64,
    ROWS = 4,                     /* of one thread */
    LANE_TOKENS = 16,             /* lanes with the same rows */
    MINE = TOKENS / LANE_TOKENS,  /* tokens of one thread, LANE_TOKENS apart */
    HALVES = LAUNCH_THREADS / 32, /* half-tiles of a block */
    WIDTHS = 9,
    LEVELS = 256,
    COLUMN_LD = TOKENS + 1, /* floats between columns of vectors, which are written along a row */
    /* floats between columns of levels, which are written in the order of fragments */
    LEVEL_LD = LAUNCH_CODING_LD,
};

/* The part of a thread: tokens @token + LANE_TOKENS j, rows @row + i of a matrix. */
struct share {
    uint32_t token, row;
};

DEVICE struct share share_of(uint32_t tile)
{
    uint32_t lane = threadIdx.x % 32;

    return {lane % LANE_TOKENS, LAUNCH_TILE_ROWS * tile + 8 * (threadIdx.x / 32) + lane / LANE_TOKENS * ROWS};
}

/* sum[i][j] += row[i] x[j], in order, for the rows @row [n] and columns x [n] of the tokens of this thread,
 * @x_ld apart in shared memory. @n is even and rows are aligned to 8. */
DEVICE void multiply_rows(const float *const row[ROWS], const float *x, uint32_t x_ld, uint32_t n,
                          float sum[ROWS][MINE])
{
    for (uint32_t k = 0; k < n; k += 2) {
        float x0[MINE], x1[MINE];

        UNROLL
        for (uint32_t j = 0; j < MINE; j++) {
            x0[j] = x[k * x_ld + LANE_TOKENS * j];
            x1[j] = x[(k + 1) * x_ld + LANE_TOKENS * j];
        }
        UNROLL
        for (uint32_t i = 0; i < ROWS; i++) {
            struct floats2 w = load_floats2(row[i] + k);

            UNROLL
            for (uint32_t j = 0; j < MINE; j++)
                sum[i][j] =
                    add_rounded(add_rounded(sum[i][j], mul_rounded(w.x, x0[j])), mul_rounded(w.y, x1[j]));
        }
    }
}

/* The same for rows m [n_rows >= 1][n], @ld apart. Rows from n_rows on repeat the last one. */
DEVICE void multiply(const float *m, size_t ld, uint32_t n_rows, const float *x, uint32_t x_ld, uint32_t n,
                     float sum[ROWS][MINE])
{
    const float *row[ROWS];

    UNROLL
    for (uint32_t i = 0; i < ROWS; i++)
        row[i] = m + (i < n_rows ? i : n_rows - 1) * ld;
    multiply_rows(row, x, x_ld, n, sum);
}

/* sum += term, or sum -= term if @less. */
DEVICE void add_shares(float sum[ROWS][MINE], const float term[ROWS][MINE], bool less)
{
    UNROLL
    for (uint32_t i = 0; i < ROWS; i++) {
        UNROLL
        for (uint32_t j = 0; j < MINE; j++)
            sum[i][j] = add_rounded(sum[i][j], less ? -term[i][j] : term[i][j]);
    }
}

/* Loads the levels of all coordinates of one head and side for 64 tokens to shared
 * [r][LEVEL_LD]. Ends with a barrier. */
DEVICE void load_levels(const uint16_t *levels, const struct device_codes *codes, const uint8_t *block,
                        bool is_key, float *ret)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane >> 2, column = 2 * (lane & 3);

    for (uint32_t i = warp; i < 8u * codes->n_half; i += LAUNCH_THREADS / 32) {
        uint32_t half = i / 8, j = i % 8, pair = levels_at(levels, codes, block, half, lane, j);
        float *at = ret + (8 * half + (is_key ? column : row)) * LEVEL_LD + 8 * j + (is_key ? row : column);

        at[0] = half_to_float((uint16_t) pair);
        at[is_key ? LEVEL_LD : 1] = half_to_float((uint16_t) (pair >> 16));
    }
    __syncthreads();
}

/* Levels of one side. */
DEVICE const uint16_t *levels_of(const struct device_table *t, bool is_key)
{
    return t->levels + (is_key ? 0 : WIDTHS * LEVELS);
}

/* Restores a vector element from binary16 of x - mean: mean + row, as on the CPU. */
DEVICE float exact_value(float mean, uint16_t x)
{
    return add_rounded(mean, half_to_float(x));
}

/* Element @i of an array of @dtype. */
DEVICE float element(const void *x, enum launch_dtype dtype, size_t i)
{
    if (dtype == LAUNCH_F32)
        return ((const float *) x)[i];
    if (dtype == LAUNCH_F16)
        return half_to_float(((const uint16_t *) x)[i]);
    return bfloat_to_float(((const uint16_t *) x)[i]);
}

DEVICE bool is_finite_half(uint32_t x)
{
    return (x & 0x7c00) != 0x7c00;
}
