/* What attention kernels share: the partial result that a block leaves for kvc_merge. */
#pragma once

#include "gpu/cuda/kernels/queries.h"

/*
 * Per row: maximum, sum; then accumulators [columns_max][ROWS], of which warp w has tiles w, w + 4 .. of 16 columns; then exact
 * values [ROWS][d], zeros where @exact is NULL.
 */
template <int VALUE_TILES, int ROW_TILES>
DEVICE void store_partial(const struct plan_table *t, uint32_t n_rows, const float c[VALUE_TILES][ROW_TILES][4],
                          const float *max, const float *sum, const float *exact, float *ret)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *acc = ret + 2 * ROWS, *exact_at = acc + t->columns_max * ROWS;

    if (threadIdx.x < n_rows) {
        ret[threadIdx.x] = max[threadIdx.x];
        ret[ROWS + threadIdx.x] = sum[threadIdx.x];
    }
    UNROLL
    for (uint32_t x = 0; x < VALUE_TILES; x++)
        UNROLL
        for (unsigned n = 0; n < ROW_TILES; n++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) {
                uint32_t col = 16 * (warp + x * WARPS) + (lane >> 2) + (i >> 1) * 8;

                if (col < t->columns_max)
                    acc[col * ROWS + 8 * n + 2 * (lane & 3) + (i & 1)] = c[x][n][i];
            }
    for (uint32_t i = threadIdx.x; i < n_rows * t->d; i += PLAN_THREADS)
        exact_at[i] = exact ? exact[i] : 0;
}
