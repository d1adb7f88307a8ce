/*
 * D(r, b) of one head for every candidate (r, b), by the model or by quantising (paper, appendix "C2 solver
 * choice", "Exact DP over measured distortion").
 */
#pragma once

#include "alloc/solve_spectra.h"

/**
 * dp_head_curve() - fill what dp_head_options() reads
 * @i:     head of @p
 * @ret_D: [d / rank_step + 1, b_max - b_min + 1]
 *
 * CURVE_BENNETT, CURVE_GAUSSIAN: eq:drb-preview with q(b), or with the quantiser's exact error on N(0,1).
 * CURVE_MEASURED: the sampled vectors are projected, rotated, quantised and turned back once for every (r,
 * b), with the matrices that the table would get; what truncation costs is known from every token and is not
 * sampled.
 *
 * Return: 0; -EDOM: not finite; -ENOMEM.
 */
int dp_head_curve(const struct solver *v, enum side side, const struct spectra *p, uint32_t i, double *ret_D);
