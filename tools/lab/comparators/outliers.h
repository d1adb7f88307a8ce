/* The few numbers of a group that are kept exactly beside the codes: 16 bits of value, 16 of position. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { OUTLIER_BITS = 32 };

/**
 * outliers_find() - the n_each smallest and the n_each largest of a group
 * @x:        n numbers, @stride apart
 * @ret_mark: [n] 1 where a number is one of them, else 0; of equal ones the first
 *
 * Return: how many are marked: 2 n_each, or n if there are fewer.
 */
size_t outliers_find(const float *x, size_t n, size_t stride, size_t n_each, uint8_t *ret_mark);

/* n_each for a share of @n on both ends together, to the nearest whole number: 0 for short groups. */
size_t outliers_each(double share, size_t n);

/* Mean of what is not marked; 0 if everything is. */
float outliers_rest_mean(const float *x, size_t n, size_t stride, const uint8_t *mark);
