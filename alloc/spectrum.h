/*
 * Spectra of one head-side, for people to look at: how the energy of its vectors is spread over directions,
 * by itself and in the metric that the solvers minimise. Solving does not come here (transform.h,
 * solve_spectra.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/geometry.h"
#include "alloc/solve.h"

struct stats;

/**
 * spectrum_fill() - eigenvalues of one head-side
 * @m, @power:    the metric and what it is raised to, see metric_matrix(); @m is available
 * @ret_lambda:   [d] of the centred covariance S, descending; rounding below zero is 0
 * @ret_weighted: [d] of A S A with A = (M + ridge)^(1/2), DESIGN 3.2: harm that each direction holds;
 * descending
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

/* (sum w)^2 / sum w^2: how many equal directions would be as spread out; 0 for all zeros. */
double spectrum_effective_rank(const double *w, size_t n);
