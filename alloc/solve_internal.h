/*
 * The parts of a solve, shared by solve*.c and depth.c; callers use alloc/solve.h.
 *
 * A solver holds one struct head per head-side: its transform, its curve and, in the end, its bits. Methods
 * fill them, solve_build() makes a table of them, solve_measure() judges the table.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/curve.h"
#include "alloc/solve.h"
#include "alloc/table.h"
#include "alloc/transform.h"

struct errmsg;
struct stats;

#define ALL_LAYERS UINT32_MAX

struct head {
    struct transform t;
    double *mean;    /* [d]: of x, or of the residual v - P c */
    double *predict; /* V: [d, n_predict] from K's stored coordinates z, or NULL */
    double *dec;     /* [d, n] per band, as band_spec wants it; filled by solve_build() */
    uint32_t n_predict;
    struct {             /* fitted by least squares; NULL: the inverse of the encoder */
        double *mean;    /* [d] */
        double *predict; /* [d, n_predict], or NULL */
        double *dec;     /* [d, coordinates of stored bands, in stored order] */
    } decoder;
    double weight;                                          /* omega(layer, side) */
    double curve[TABLE_HALF_TILES_MAX][TABLE_BITS_MAX + 1]; /* weighted distortion of each band by bits */
    uint8_t bits[TABLE_HALF_TILES_MAX];
};

struct solver {
    const struct stats *s;
    const struct geometry *g;
    struct solve_options o;
    struct curve_model model;                    /* levels and errors on N(0,1) */
    struct levels levels[2][TABLE_BITS_MAX + 1]; /* of the table: fitted where they are */
    struct head *heads;                          /* [n_heads], by head_side_index() */
    uint32_t n_heads;
    uint32_t only_layer; /* ALL_LAYERS, or the one to be coded */
    enum side only_side; /* with only_layer */
    double estimated;    /* distortion by the curves, of the last allocation */
    bool judged;         /* expected[] is known */
    double expected[2];  /* by side: the report's error_k and error_v, for the provenance */
};

int solver_init(struct solver *v, const struct stats *s, const struct solve_options *o, struct errmsg *e);
void solver_deinit(struct solver *v);

static inline bool solver_codes(const struct solver *v, uint32_t layer, enum side side)
{
    return v->only_layer == ALL_LAYERS || (v->only_layer == layer && v->only_side == side);
}

static inline void solver_progress(const struct solver *v, const char *what, double fraction)
{
    if (v->o.progress)
        v->o.progress(v->o.progress_ctx, what, fraction);
}

/* The sentence of an -EDOM or -ENOMEM of one head-side. Return: -EINVAL or -ENOMEM. */
int solver_fail(uint32_t layer, uint32_t head, enum side side, int err, struct errmsg *e);

/* S = scatter / n of a head-side. */
void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S);

/* ---- bands (solve_allocate.c) ---- */

/**
 * solve_fit_head() - transform and curve of one head-side from a covariance and vectors
 * @S: [d, d] covariance of x; @x: [n, d] vectors for measured curves; @mean: [d] what is subtracted from them
 */
int solve_fit_head(struct solver *v, uint32_t layer, uint32_t head, enum side side, const double *mean,
                   const double *S, const float *x, size_t n, struct errmsg *e);

/* solve_fit_head() of every coded head-side of @side from the statistics, without prediction. */
int solve_fit_side(struct solver *v, enum side side, struct errmsg *e);

/* Bits for every coded band within the budget of the options. -ERANGE: floors above it. */
int solve_allocate(struct solver *v, struct errmsg *e);

/* METHOD_BANDS from beginning to end: everything but building the table. */
int solve_bands_method(struct solver *v, struct errmsg *e);

/* ---- V from K (solve_predict.c) ---- */

struct stored_order {
    uint32_t n_bands;                    /* with bits */
    uint32_t n_coords;                   /* their coordinates, padding left out */
    uint32_t band[TABLE_HALF_TILES_MAX]; /* descending bits, stable: the order of codes in the table */
};
void solve_stored_order(const struct head *h, struct stored_order *ret);

/**
 * solve_codes() - what the codes of a head-side decode to, in units of z and in stored order, under v->levels
 * @mean, @x: [d], [n_samples, d] what its encoder reads
 * @ret_c:    [n_samples, coordinates of its stored bands], row stride @stride
 *
 * Return: 0; -EDOM, -ENOMEM.
 */
int solve_codes(const struct solver *v, uint32_t head_side, const double *mean, const float *x, double *ret_c,
                size_t stride);

/* The number of K coordinates that V of (layer, head) number @head is predicted from, and what their codes
 * decode to. */
size_t solve_predictors(const struct solver *v, uint32_t head);
int solve_predictor_codes(const struct solver *v, uint32_t head, double *ret_c, size_t stride);

/* Subtracts the column means of a [n, m] and leaves them in ret_mean. */
void solve_centre(double *a, size_t n, size_t m, double *ret_mean);

/* ret_P [d, m] := Cov(v, c) (G + l I)^-1 from centred c [n, m] and v [n, d], l = @ridge_share of G's mean
 * variance. */
int solve_regress(const double *c, const double *v, size_t n, size_t m, size_t d, double ridge_share,
                  double *ret_P);

/**
 * solve_predict_head() - P, mu_V and the residuals of one (layer, head) from its K codes under v->levels
 * @ret_u: [n_samples, d] v - P c - mu_V; the head's mean (mu_V) and predict (P) are replaced
 * @ret_S: [d, d] covariance of u
 *
 * K without stored coordinates: no prediction, residual of the mean. Statistics made of moments have no
 * residuals:
 * @ret_u is left alone.
 */
int solve_predict_head(struct solver *v, uint32_t layer, uint32_t head, float *ret_u, double *ret_S,
                       struct errmsg *e);

/* Of the mean variance of the codes' covariance: added to it before P is made. */
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

/* solve_predict_head() and solve_fit_head() on the residual, for every V. Bits stay. */
int solve_fit_residuals(struct solver *v, struct errmsg *e);

/* ---- levels (solve_levels.c) ---- */

/* Fits v->levels[side] to the pooled unit-variance coordinates of that side at each width (DESIGN 3.3). */
int solve_fit_levels(struct solver *v, enum side side, struct errmsg *e);

/* ---- decoders (solve_decode.c) ---- */

/* Least-squares decoders of every head-side for its codes as stored; after everything else. */
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
