/* Outliers of a group: numbers that are stored exactly beside the codes, with 16 bits of value and 16 of
 * position. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { OUTLIER_BITS = 32 };

/**
 * outliers_find() - the n_each smallest and the n_each largest of a group
 * @x:        n numbers, @stride apart
 * @ret_mark: [n] 1 where a number is one of them, else 0; of equal numbers the first
 *
 * Return: number of marked ones: 2 n_each, or n if there are fewer.
 */
size_t outliers_find(const float *x, size_t n, size_t stride, size_t n_each, uint8_t *ret_mark);

/* n_each for a share of @n at both ends together, rounded; 0 for short groups. */
size_t outliers_each(double share, size_t n);

/* Mean of the numbers that are not marked; 0 if all are marked. */
float outliers_rest_mean(const float *x, size_t n, size_t stride, const uint8_t *mark);
