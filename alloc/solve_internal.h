/*
 * The steps of a solve, shared by solve*.c and depth.c; callers use alloc/solve.h.
 *
 * A method fills the heads of a struct solver (solver.h) step by step, solve_build() makes a table of them,
 * solve_measure() encodes the samples with that table and adds up the distortion.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solve_view.h"
#include "alloc/solver.h"

/* ---- transforms and curves (solve_fit.c) ---- */

/* Transform and curve of a head-side from its view. Return: 0; -EDOM; -ENOMEM. */
int solve_fit_head(struct solver *v, uint32_t head_side, const struct solve_view *w);

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
 * @mean, @x: [d], [v->n, d] input of its encoder
 * @ret_c:    [v->n, coordinates of its stored bands], row stride @stride
 *
 * Return: 0; -EDOM, -ENOMEM.
 */
int solve_codes(const struct solver *v, uint32_t head_side, const double *mean, const float *x, double *ret_c,
                size_t stride);

/* The number of K coordinates that V of (layer, head) number @head is
 * predicted from, and their decoded codes. */
size_t solve_predictors(const struct solver *v, uint32_t head);
int solve_predictor_codes(const struct solver *v, uint32_t head, double *ret_c, size_t stride);

/**
 * solve_predict_head() - P and mu_V of one (layer, head) from its K codes under v->levels, and its view
 *
 * The head's mean (mu_V) and predict (P) are replaced. If sources are left out, the ridge of P is the one
 * with the least error on them; P may be 0. K without stored coordinates: no prediction. Statistics made of
 * moments have no rows.
 *
 * Return: 0; -EDOM; -ENOMEM.
 */
int solve_predict_head(struct solver *v, uint32_t layer, uint32_t head, struct solve_view *w);

struct regression;

/* regression_choose_ridge() under the head-side's metric; *ret_ridge stays if no source is left out.
 * Return: 0; -EDOM; -ENOMEM. */
int solve_predict_choose(const struct solver *v, uint32_t hs, const struct regression *r,
                         const double *ridges, size_t n_ridges, double *ret_ridge);

/* Ridge of P with one source, relative to the mean variance of the codes' covariance. */
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

/* Ridge of decoders with one source, of the mean variance of the codes' covariance. 1e-1 costs 2 % KL at 2
 * bits per number; 1e-3 and less differ by noise. */
#define SOLVE_DECODE_RIDGE 1e-4

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

/* What the table of @v is expected to cost on other sources, into @ret->unseen; if sources are left out. */
int solve_expect_unseen(struct solver *v, struct solve_report *ret, struct errmsg *e);

/* The distortion of the source that options leave out, if they do. */
int solve_measure_left_out(const struct solver *v, const void *bytes, size_t n_bytes,
                           struct solve_report *ret, struct errmsg *e);

/* Bits and distortion of a finished table, by encoding the samples with the table's own codecs. */
int solve_measure(const struct solver *v, const void *bytes, size_t n_bytes, struct solve_report *ret,
                  struct errmsg *e);
