/*
 * Spectra of one head-side: the energy of its vectors by direction, plain and in the metric that solvers
 * minimise. `kvcobra inspect` shows them; solvers use transform.h and solve_spectra.h instead.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solve/solve.h"
#include "alloc/table/geometry.h"

struct stats;

/**
 * spectrum_fill() - eigenvalues of one head-side
 * @m, @power:    the metric and its power, see metric_matrix(); @m is available
 * @ret_lambda:   [d] of the centred covariance S, descending; negative ones from rounding become 0
 * @ret_weighted: [d] of A S A with A = (M + ridge)^(1/2), DESIGN 3.2, descending: the distortion e'Me that
 *                leaving out each direction costs
 *
 * Return: 0; -ENODATA: no token was counted; -EDOM: too large for a transform; -ENOMEM.
 */
int spectrum_fill(const struct stats *s, enum metric m, double power, uint32_t layer, uint32_t head,
                  enum side side, double *ret_lambda, double *ret_weighted);

/*
 * alpha of w_i ~ i^-alpha: least squares of log w over log i, i = 1..n, over the values above 1e-12 of the
 * first (paper, "Flatter spectra"). NaN with fewer than two of them.
 */
double spectrum_power_law(const double *w, size_t n);

/* (sum w)^2 / sum w^2: the number of equal directions with the same spread; 0 if all are 0. */
double spectrum_effective_rank(const double *w, size_t n);
