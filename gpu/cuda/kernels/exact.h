/* Common to the attention kernels: keys and values that are not packed (sinks and the tail), and the part
 * of a score that comes from the key mean. */
#pragma once

#include "gpu/cuda/kernels/queries.h"

/* Adds the part of the key mean to every score. */
DEVICE void add_mean_scores(const struct device_table *t, uint32_t n_rows, struct shared s)
{
    uint32_t n = t->n_planes;

    for (uint32_t i = threadIdx.x; i < TOKENS * n_rows; i += LAUNCH_THREADS) {
        uint32_t token = i % TOKENS, row = i / TOKENS;
        const float *terms = s.mean_terms + row * 2 * n;
        float sum = 0;

        for (uint32_t p = 0; p < t->d / 2; p++)
            sum += terms[p] * t->cosine[p * TOKENS + token] + terms[n + p] * t->sine[p * TOKENS + token];
        s.scores[token * SCORE_LD + row] += sum;
    }
    __syncthreads();
}

/* Computes the scores of @n_keys exact keys [d] of x - mean, with the first position of the block at offset
 * 0; overwrites the scores of the last block. */
DEVICE void score_exact(const struct device_table *t, const struct device_head *head, const uint16_t *keys,
                        uint32_t n_keys, uint32_t n_rows, struct shared s)
{
    uint32_t n = t->n_planes;

    for (uint32_t i = threadIdx.x; i < n_keys * n_rows; i += LAUNCH_THREADS) {
        uint32_t token = i / n_rows, row = i % n_rows;
        const float *q = s.query + row * 2 * n;
        float sum = 0;

        for (uint32_t p = 0; p < t->d / 2; p++) {
            float lo = head->mean_k[p] + half_to_float(keys[token * t->d + plane_dim(t, p, 0)]);
            float hi = head->mean_k[n + p] + half_to_float(keys[token * t->d + plane_dim(t, p, 1)]);

            sum += (q[p] * lo + q[n + p] * hi) * t->cosine[p * TOKENS + token] +
                   (q[n + p] * lo - q[p] * hi) * t->sine[p * TOKENS + token];
        }
        s.scores[token * SCORE_LD + row] = sum;
    }
    __syncthreads();
}

/* Adds the weights of @n exact keys times their values, [d] of x - mean. */
DEVICE void add_exact(const struct device_table *t, const uint16_t *values, uint32_t n, uint32_t n_rows,
                      struct shared s)
{
    for (uint32_t i = threadIdx.x; i < n_rows * t->d; i += LAUNCH_THREADS) {
        uint32_t row = i / t->d, col = i % t->d;
        float sum = s.exact[i] * s.factor[row];

        for (uint32_t token = 0; token < n; token++)
            sum += s.scores[token * SCORE_LD + row] * half_to_float(values[token * t->d + col]);
        s.exact[i] = sum;
    }
    __syncthreads();
}
