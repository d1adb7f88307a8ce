/*
 * Rotary angles. All are formed in binary64, because position x frequency reaches 1e6
 * radians and more, where binary32 has no digits left after the point. Only finished cosines
 * and sines are rounded to binary32.
 *
 * R(n) rotates plane i, the pair (i, i + n_rot / 2), by n freq[i]. A phase is R at one
 * position, as unit complex numbers.
 */
#pragma once

#include <stddef.h>

#include "alloc/table/geometry.h"

struct rope_phase {
    double cos[GEOMETRY_PLANES_MAX], sin[GEOMETRY_PLANES_MAX];
};

/* R(position); @position is a whole number of either sign. */
void rope_phase_at(const struct geometry *g, double position, struct rope_phase *ret);

/* phase := R(step) phase. Errors add up to about 2^-53 per call: after a million
 * calls they are far below binary32. */
void rope_phase_advance(const struct geometry *g, struct rope_phase *phase, const struct rope_phase *step);

/* ret [d] = R x. @ret may be @x. */
void rope_rotate(const struct geometry *g, const struct rope_phase *phase, const float *x, float *ret);

/* cos, sin [n_rot/2][64] of positions first .. first + 63, one token per column. */
void rope_columns(const struct geometry *g, double first, float *ret_cos, float *ret_sin);

/* cos, sin [n][n_rot/2] of positions first .. first + n - 1, one token per row. An angle depends on its
 * position alone, not on @first. */
void rope_rows(const struct geometry *g, size_t first, size_t n, float *ret_cos, float *ret_sin);

/* Rows of positions first .. first + n - 1, for calls that use the same positions one after another: an
 * engine appends layer by layer. Starts as zeros. */
struct rope_table {
    size_t first, n, n_max;
    float *cos, *sin; /* [n_max][n_rot/2] */
};

/* Makes @t contain @n positions from @first on; it is always used with one geometry. Return: 0; -ENOMEM. */
int rope_table_cover(struct rope_table *t, const struct geometry *g, size_t first, size_t n);
void rope_table_deinit(struct rope_table *t);
