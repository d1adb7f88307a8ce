/* Common to the attention kernels: the weights of 64 keys from their scores, base
 * 2, with running maxima and sums. */
#pragma once

#include "gpu/cuda/kernels/queries.h"

/*
 * Computes the weights of the keys that each row sees, out of @n keys from position @first; the first
 * @n_exact weights are for exact values. Eight threads per row. Weights are rounded to binary16 before they
 * are summed, so that they agree with their sum.
 */
DEVICE void softmax(const struct launch_attend *a, const struct rows *rows, uint32_t first, uint32_t n,
                    uint32_t n_exact, struct shared s)
{
    unsigned row = threadIdx.x / 8, sub = threadIdx.x % 8;
    float largest = LEAST, before = s.max[row], sum = 0, factor;
    uint32_t from = 0, to = 0;

    if (row < rows->n)
        visible(a, rows->position + row / rows->group, first, n, &from, &to);
    for (uint32_t token = sub; token < TOKENS; token += 8)
        if (token >= from && token < to)
            largest = fmaxf(largest, s.scores[token * SCORE_LD + row]);
    largest = fmaxf(max_of(largest, 8), before);
    factor = exp2_fast(before - largest);
    for (uint32_t token = sub; token < TOKENS; token += 8) {
        bool seen = token >= from && token < to;
        uint16_t weight =
            (uint16_t) pack_halves(seen ? exp2_fast(s.scores[token * SCORE_LD + row] - largest) : 0, 0);

        sum += half_to_float(weight);
        s.scores[token * SCORE_LD + row] = half_to_float(weight);
        s.weights[row * WEIGHT_LD + token] = token < n_exact ? 0 : weight;
    }
    sum = sum_of(sum, 8);
    warp_sync(); /* all lanes of the row have read its maximum */
    if (sub == 0) {
        s.max[row] = largest;
        s.sum[row] = s.sum[row] * factor + sum;
        s.factor[row] = factor;
    }
    __syncthreads();
}
