/*
 * Books of levels for trellises (trellis.h): Lloyd's iteration over the states that the encoder chooses.
 */
#pragma once

#include <stddef.h>

#include "alloc/table/table.h"

/* Fewer numbers are no samples of a book. */
#define TRELLIS_FIT_MIN 4096

/**
 * trellis_normal() - a book for z ~ N(0,1)
 * @ret_mse: of other numbers than those that it was fitted to
 * Return: 0; -ENOMEM.
 */
int trellis_normal(unsigned b, unsigned state_bits, struct levels *ret, double *ret_mse);

/**
 * trellis_scale() - ret := the levels of @l times @factor, as levels_scale(), for a trellis or scalar levels
 *
 * E c z and E c^2 of a trellis are measured again: numbers keep their size while cells grow, so neither
 * grows with @factor.
 *
 * Return: 0; -EINVAL: as levels_scale(); -ENOMEM.
 */
int trellis_scale(const struct levels *l, unsigned b, double factor, struct levels *ret);

/**
 * trellis_fit() - a book for samples, from @l on, which is replaced
 * @samples: [n] of unit variance, of many coordinates; with fewer than TRELLIS_FIT_MIN, @l stays
 *
 * The last step is measured by @l's own error on the samples: a book that is not better is not taken.
 *
 * Return: 0; -ENOMEM.
 */
int trellis_fit(const float *samples, size_t n, unsigned b, struct levels *l);
