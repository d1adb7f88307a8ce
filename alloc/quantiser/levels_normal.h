/*
 * Levels and thresholds of scalar quantisers for N(0,1), 1 to 8 bits, and their error (DESIGN 3.3). All
 * numbers are in units of a coordinate's standard deviation.
 */
#pragma once

#include "alloc/table/levels.h"

enum quantiser {
    QUANT_LLOYD_MAX = 0, /* least error on N(0,1); the default, and the start of levels_fit() */
    QUANT_UNIFORM = 1,   /* midrise, optimal step */
    /* the paper's (appendix "The uniform scalar quantizer"): codes -2^(b-1)..2^(b-1)-1, step 2L/2^b, L the
       least-error loading factor on N(0,1) */
    QUANT_UNIFORM_MIDTREAD = 2,
};

/* The levels of a quantiser for N(0,1) in stored form. Return: 0; -EINVAL: @b is not in 1..8. */
int levels_normal(enum quantiser q, unsigned b, struct levels *ret);

/* E[(X - Q(X))^2], X ~ N(0,1), exact for the stored form. */
double levels_normal_mse(const struct levels *l, unsigned b);

/* Loading factor L of the mid-tread quantiser: about 1.22, 2.10, 2.40, 2.70,
 * 3.02, 3.34, 3.64, 3.94 for b = 1..8. */
double levels_normal_midtread_loading(unsigned b);
