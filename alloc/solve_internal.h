/*
 * The steps of a solve, shared by solve*.c and depth.c; callers use alloc/solve.h.
 *
 * A method fills the heads of a struct solver (solver.h) step by step, solve_build() makes a table of them,
 * solve_measure() encodes the samples with that table and adds up the distortion.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solver.h"

/* ---- transforms and curves (solve_fit.c) ---- */

/**
 * solve_fit_head() - transform and curve of one head-side from a covariance and vectors
 * @S:    [d, d] covariance of x
 * @x:    [n, d] vectors for measured curves
 * @mean: [d] subtracted from @x
 */
int solve_fit_head(struct solver *v, uint32_t layer, uint32_t head, enum side side, const double *mean,
                   const double *S, const float *x, size_t n, struct errmsg *e);

/* solve_fit_head() of every coded head-side of @side from the statistics, without prediction. */
int solve_fit_side(struct solver *v, enum side side, struct errmsg *e);

/* ---- bits (solve_allocate.c) ---- */

/* Bits for every coded band within the budget of the options. Return: 0;
 * -ERANGE: the floors exceed it; -ENOMEM. */
int solve_allocate(struct solver *v, struct errmsg *e);

/* All steps of METHOD_BANDS but building the table. */
int solve_bands_method(struct solver *v, struct errmsg *e);

/* ---- V from K (solve_predict.c) ---- */

struct stored_order {
    uint32_t n_bands;                    /* with bits */
    uint32_t n_coords;                   /* their coordinates, padding left out */
    uint32_t band[TABLE_HALF_TILES_MAX]; /* descending bits, stable: the order of codes in the table */
};
void solve_stored_order(const struct head *h, struct stored_order *ret);

/**
 * solve_codes() - decoded codes of a head-side, in units of z and in stored order, under v->levels
 * @mean, @x: [d], [n_samples, d] input of its encoder
 * @ret_c:    [n_samples, coordinates of its stored bands], row stride @stride
 *
 * Return: 0; -EDOM, -ENOMEM.
 */
int solve_codes(const struct solver *v, uint32_t head_side, const double *mean, const float *x, double *ret_c,
                size_t stride);

/* The number of K coordinates that V of (layer, head) number @head is
 * predicted from, and their decoded codes. */
size_t solve_predictors(const struct solver *v, uint32_t head);
int solve_predictor_codes(const struct solver *v, uint32_t head, double *ret_c, size_t stride);

/* Subtracts the column means of a [n, m]; ret_mean [m] := these means. */
void solve_centre(double *a, size_t n, size_t m, double *ret_mean);

/* ret_P [d, m] := Cov(v, c) (G + l I)^-1 from centred c [n, m] and v [n, d],
 * l = @ridge_share of G's mean variance. */
int solve_regress(const double *c, const double *v, size_t n, size_t m, size_t d, double ridge_share,
                  double *ret_P);

/**
 * solve_predict_head() - P, mu_V and the residuals of one (layer, head) from its K codes under v->levels
 * @ret_u: [n_samples, d] v - P c - mu_V; the head's mean (mu_V) and predict (P) are replaced
 * @ret_S: [d, d] covariance of u
 *
 * K without stored coordinates: no prediction; the residual is v - mean. Statistics made of moments have no
 * residuals: @ret_u is untouched.
 */
int solve_predict_head(struct solver *v, uint32_t layer, uint32_t head, float *ret_u, double *ret_S,
                       struct errmsg *e);

/* Ridge of P, relative to the mean variance of the codes' covariance. */
#define SOLVE_PREDICT_RIDGE 1e-3

/* Code c = Q(z) of z ~ N(0, variance). */
struct gaussian_code {
    double mean, gain, variance; /* E c; E cz / variance; E c^2 - (E c)^2 */
};
void solve_gaussian_code(const struct levels *l, unsigned b, double variance, struct gaussian_code *ret);

/* P, mu_V and the residual's covariance [d, d] of one (layer, head) from covariances alone
 * (solve_predict_moments.c). Return: 0; -EDOM; -ENOMEM. */
int solve_predict_moments(struct solver *v, uint32_t hs_k, uint32_t hs_v, const struct stored_order *order,
                          double *ret_S);

/* solve_predict_head() and solve_fit_head() on the residual, for every V. Does not change bits. */
int solve_fit_residuals(struct solver *v, struct errmsg *e);

/* ---- levels (solve_levels.c) ---- */

/* Fits v->levels[side] to the pooled unit-variance coordinates of that side at each width (DESIGN 3.3). */
int solve_fit_levels(struct solver *v, enum side side, struct errmsg *e);

/* ---- decoders (solve_decode.c) ---- */

/* Least-squares decoders of every head-side for its codes as stored; the last step. */
int solve_fit_decoders(struct solver *v, struct errmsg *e);

/* ---- the paper (solve_paper_method.c) ---- */

int solve_paper_method(struct solver *v, struct errmsg *e);

/* METHOD_DP (solve_dp_method.c). */
int solve_dp_method(struct solver *v, struct errmsg *e);

/* ---- the table (solve_build.c, solve_provenance.c, solve_report.c) ---- */

int solve_build(struct solver *v, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e);

/* malloc'ed JSON: every option and the digest of the statistics; no time, path or host. */
int solve_provenance(const struct solver *v, char **ret_json, struct errmsg *e);

/* Bits and distortion of a finished table, by encoding the samples with the table's own codecs. */
int solve_measure(const struct solver *v, const void *bytes, size_t n_bytes, struct solve_report *ret,
                  struct errmsg *e);
