/*
 * Scalar quantisers: levels and thresholds for 1 to 8 bits, their error on N(0,1), and fitting to samples.
 * DESIGN 3.3. Everything here is in units of a coordinate's standard deviation.
 */
#pragma once

#include <stddef.h>

#include "alloc/table.h"

enum quantiser {
    QUANT_LLOYD_MAX = 0, /* least error on N(0,1); the default, and the start of fitting */
    QUANT_UNIFORM = 1,   /* midrise, optimal step */
    QUANT_UNIFORM_MIDTREAD =
        2, /* the paper's (appendix "The uniform scalar quantizer"): codes -2^(b-1)..2^(b-1)-1,
              step 2L/2^b, L the least-error loading factor on N(0,1) */
};

/**
 * levels_from_values() - make the stored form of real levels
 * @values: [2^b] strictly ascending, units of z
 *
 * b <= 4: rounded to int8 with the largest magnitude at 127 and one step; b >= 5: rounded to binary16.
 * Thresholds are midpoints of the rounded levels. Return: 0; -EINVAL if rounding makes two levels equal or
 * not finite.
 */
int levels_from_values(const double *values, unsigned b, struct levels *ret);

/* The levels of a quantiser for N(0,1), computed (not tabulated), stored form. @b in 1..8. */
int levels_normal(enum quantiser q, unsigned b, struct levels *ret);

/* E[(X - Q(X))^2], X ~ N(0,1), exact for the stored form. */
double levels_normal_mse(const struct levels *l, unsigned b);

/* Loading factor L of the mid-tread quantiser: about 1.22, 2.10, 2.40, 2.70, 3.02, 3.34, 3.64, 3.94 for b
 * = 1..8. */
double quant_midtread_loading(unsigned b);

/**
 * levels_fit() - Lloyd's algorithm on samples, started at Lloyd-Max of N(0,1)
 * @samples: [n], borrowed and unchanged; fewer than LEVELS_FIT_MIN keep the start
 * Return: 0; -ENOMEM.
 */
#define LEVELS_FIT_MIN 4096
int levels_fit(const float *samples, size_t n, unsigned b, struct levels *ret);

/* Level of code @q in units of z (value * step). */
static inline double level_z(const struct levels *l, unsigned q)
{
    return (double) l->value[q] * (double) l->step;
}
