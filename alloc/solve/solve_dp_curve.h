/*
 * D(r, b) of one head for every candidate (r, b), by a model or measured by quantising (paper, appendix "C2
 * solver choice", "Exact DP over measured distortion").
 */
#pragma once

#include "alloc/solve/solve_spectra.h"

/**
 * dp_head_curve() - the D(r, b) that dp_head_options() reads
 * @i:     head of @p
 * @ret_D: [d / rank_step + 1, b_max - b_min + 1]
 *
 * CURVE_BENNETT, CURVE_GAUSSIAN: eq:drb-preview with q(b), or with the quantiser's exact error on N(0,1).
 * CURVE_MEASURED: the sampled vectors are projected, rotated, quantised and rotated back for every (r, b),
 * with the matrices that the table would get. The distortion of truncation is computed from the covariance of
 * all tokens, not from samples.
 *
 * Return: 0; -EDOM: not finite; -ENOMEM.
 */
int dp_head_curve(const struct solver *v, enum side side, const struct spectra *p, uint32_t i, double *ret_D);
