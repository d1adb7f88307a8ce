/* Normal vectors with given moments, for moments_distortion.c. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "base/splitmix64.h"

struct moments;

/* A normal number by Box and Muller, whose first number is never 0. */
static inline double moments_draw_normal(uint64_t *state)
{
    double u = ((double) (splitmix64_next(state) >> 11) + 1) * 0x1p-53,
           v = (double) (splitmix64_next(state) >> 11) * 0x1p-53;

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/**
 * moments_draw_joint() - vectors of one layer with the covariance of joint moments
 * @ret_vectors: [2][n, n_kv_heads, d] keys and values. The same arguments give the same numbers
 *
 * Values of two heads depend on each other by the keys only.
 *
 * Return: 0; -EDOM: a covariance without a root; -ENOMEM.
 */
int moments_draw_joint(const struct moments *m, uint32_t layer, size_t n, float *const ret_vectors[2]);
