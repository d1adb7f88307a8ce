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

#include "alloc/geometry.h"

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
