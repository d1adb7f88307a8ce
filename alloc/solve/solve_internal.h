/*
 * The steps of a solve, shared by solve*.c and depth.c; callers use alloc/solve/solve.h.
 *
 * A method fills the heads of a struct solver (solver.h) step by step, solve_build() makes a table of them,
 * solve_measure() encodes the samples with that table and adds up the distortion.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solve/solve_view.h"
#include "alloc/solve/solver.h"

/* ---- transforms and curves (solve_fit.c) ---- */

/* The curve of a head-side from its view, in the basis of solve_view_fit(). Return: 0; -EDOM; -ENOMEM. */
int solve_fit_curves(struct solve_view *w);

/* Transforms and curves of every coded head-side from the statistics, without prediction.
 * @sides: bit 0: K, bit 1: V. */
int solve_fit_sides(struct solver *v, unsigned sides, struct errmsg *e);

/* ---- bits (solve_allocate.c) ---- */

/* Bits for every coded band within the budget of the options. Return: 0;
 * -ERANGE: the floors exceed it; -ENOMEM. */
int solve_allocate(struct solver *v, struct errmsg *e);

/* All steps of METHOD_BANDS but building the table. */
int solve_bands_method(struct solver *v, struct errmsg *e);

/* Its first steps: transforms, predictions, curves and bits, before levels. */
int solve_bands_begin(struct solver *v, struct errmsg *e);

/* The bands of some head-sides as one knapsack (alloc/bits/solve_bands.h). A group is a head-side. */
struct solve_pool {
    size_t n_bands, n_groups;
    double *distortion; /* [n_bands, 9] */
    uint32_t *coords, *group;
    uint64_t *floor, *ceil;
    uint8_t *bits;       /* [n_bands] the answer */
    uint32_t *head_side; /* [n_groups] */
};

/* The coded head-sides of the sides in @sides (bit 0: K, bit 1: V). Return: 0; -ENOMEM; solve_pool_deinit()
 * after both. */
int solve_pool_fill(struct solve_pool *p, const struct solver *v, unsigned sides, double floor_bpd,
                    double ceil_bpd);
void solve_pool_deinit(struct solve_pool *p);

/* ---- V from K (solve_predict.c) ---- */

enum predict_pass {
    PREDICT_ROUND, /* bits are not fixed yet: some of the tokens are enough */
    PREDICT_FINAL, /* all sampled tokens */
};

/**
 * solve_predict_view() - the view of a head-side, of values with P and mu_V from K's codes under v->levels
 *
 * The head's mean (mu_V) and predict (P) are replaced. If sources are left out, the ridge of P is the one
 * with the least error on them; P may be 0. K without stored coordinates: no prediction. Statistics made of
 * moments have no rows.
 *
 * Return: 0; -EDOM; -ENOMEM.
 */
int solve_predict_view(struct solve_view *w, enum predict_pass pass);

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

/*
 * The factor of what is decoded from codes of @b bits. Least squares decode z = N(0,1) with a variance of
 * 1 - D; 1 / (1 - D) makes E[z^ z] 1 again. @contrast: 0..1, from no factor to that one.
 */
double solve_contrast(const struct levels *l, unsigned b, double contrast);

/* P, mu_V and the residual's covariance [d, d] of one (layer, head) from covariances alone
 * (solve_predict_moments.c). Return: 0; -EDOM; -ENOMEM. */
int solve_predict_moments(struct solver *v, uint32_t hs_k, uint32_t hs_v, const struct stored_order *order,
                          double *ret_S);

/* Transforms and curves of the residuals of every V. Does not change bits. */
int solve_fit_residuals(struct solver *v, struct errmsg *e);

/* ---- levels (solve_levels.c) ---- */

/* After the bits are fixed: P, mu_V, basis and scales of values from K's codes as stored (with a prediction),
 * and v->levels[side] fitted to the pooled unit-variance coordinates of that side at each width (DESIGN 3.3),
 * if the options say so. K's side first. */
int solve_finish_side(struct solver *v, enum side side, struct errmsg *e);

/* ---- decoders (solve_decode.c) ---- */

/* Ridge of decoders with one source, of the mean variance of the codes' covariance. 1e-1 costs 2 % KL at 2
 * bits per number; 1e-3 and less differ by noise. */
#define SOLVE_DECODE_RIDGE 1e-4

/*
 * What the encoder's inverse is multiplied by for codes of @b bits of unit variance, where no decoder is
 * fitted: their least-squares factor, which is 1 for centroids, and the contrast.
 */
double solve_inverse_factor(const struct solver *v, enum side side, unsigned b);

/* Least-squares decoders of every head-side for its codes as stored; the last step. */
int solve_fit_decoders(struct solver *v, struct errmsg *e);

/* ---- the paper (solve_paper_method.c) ---- */

int solve_paper_method(struct solver *v, struct errmsg *e);

/* METHOD_DP (solve_dp_method.c). */
int solve_dp_method(struct solver *v, struct errmsg *e);

/* ---- the table (solve_build.c, solve_provenance.c, solve_report.c) ---- */

/* The encoders of a side := what the table will have of them, if that is not all: codes and decoders are made
 * with these. */
void solve_round_encoders(struct solver *v, enum side side);

int solve_build(struct solver *v, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e);

/* malloc'ed JSON: every option and the digest of the statistics; no time, path or host. */
int solve_provenance(struct solver *v, char **ret_json, struct errmsg *e);

/* What the table of @v is expected to cost on other sources, into @ret->unseen; if sources are left out. */
int solve_expect_unseen(struct solver *v, struct solve_report *ret, struct errmsg *e);

/* The distortion of the source that options leave out, if they do. */
int solve_measure_left_out(const struct solver *v, const void *bytes, size_t n_bytes,
                           struct solve_report *ret, struct errmsg *e);

/* Bits and distortion of a finished table, by encoding the samples with the table's own codecs. */
int solve_measure(struct solver *v, const void *bytes, size_t n_bytes, struct solve_report *ret,
                  struct errmsg *e);
