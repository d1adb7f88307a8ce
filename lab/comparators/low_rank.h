/* Low-rank approximation of a matrix by power iteration, for GEAR. */
#pragma once

#include <stddef.h>

/**
 * low_rank() - approximate x [n, d] by q p', q [n, r] and p [d, r] rounded to binary16
 * @ret_y: [n, d] q p'
 *
 * Three rounds from a fixed start. Return: 0; -ENOMEM.
 */
int low_rank(const float *x, size_t n, size_t d, size_t r, float *ret_y);
