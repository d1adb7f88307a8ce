/*
 * The stored form of levels (DESIGN 3.3). The table reader checks it with levels_valid(); levels_normal.c and
 * levels_fit.c produce it with levels_from_values(). libc only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "alloc/table/table.h"

/* Levels of widths up to this are int8 multiples of one step; levels of wider codes are binary16. */
#define LEVELS_INT8_BITS_MAX 4

/* Sets thresholds to the midpoints of @l's values: exact in binary64, rounded once to binary32. */
void levels_set_thresholds(struct levels *l, unsigned b);

/* Whether @l is in stored form: integers or binary16 numbers, ascending, thresholds at their midpoints; a
 * book of integers whose largest magnitude is 127. */
bool levels_valid(const struct levels *l, unsigned b);

/**
 * levels_from_values() - round real levels to the stored form
 * @values: [2^b] strictly ascending, units of z
 *
 * b <= 4: rounded to int8 with the largest magnitude at 127 and one step; b >= 5: rounded to binary16.
 * Thresholds are midpoints of the rounded levels.
 *
 * Return: 0; -EINVAL: a level is not finite, or rounding makes two levels equal.
 */
int levels_from_values(const double *values, unsigned b, struct levels *ret);

/**
 * levels_from_book() - the same for the levels of a trellis, in any order
 * @values:     [2^state_bits] by state, units of z
 * @product, @square: E c z and E c^2 of their codes c of z ~ N(0,1)
 *
 * Return: 0; -EINVAL: a number is not finite, or all levels are 0.
 */
int levels_from_book(const double *values, unsigned state_bits, double product, double square,
                     struct levels *ret);

/* ret := the levels of @l times @factor; E c z and E c^2 of a trellis are 0 (trellis_fit.h measures them).
 * Return: as levels_from_values() or levels_from_book(). */
int levels_scale(const struct levels *l, unsigned b, double factor, struct levels *ret);

/* Limits beyond which a number, in units of z, counts as saturated. With a trellis: TRELLIS_SATURATED steps.
 * The outermost cells of scalar levels are open. Each is taken to be symmetric about its level: twice as
 * wide as the distance from its threshold to its level. The limit is the far end of that cell. This
 * definition also works for one bit, which has no inner cell. */
void levels_saturation_limits(const struct levels *l, unsigned b, float *ret_low, float *ret_high);

/* How many of z [n, n_coords], row stride @stride, are beyond these limits. */
size_t levels_count_saturated(const struct levels *l, unsigned b, const float *z, size_t n, size_t n_coords,
                              size_t stride);

/* Level of code or state @q in units of z (value * step). */
static inline double level_z(const struct levels *l, unsigned q)
{
    return (double) l->value[q] * (double) l->step;
}
