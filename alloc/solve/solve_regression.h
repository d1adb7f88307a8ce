/*
 * Linear regression of vectors x on codes c from moments by source, so that it can be fitted without one
 * source and judged on that source. Used for the prediction of values from keys, and for decoders.
 *
 * With G the centred covariance of c and X = Cov(x, c):   P = X (G + l tr(G)/m I)^-1
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/stats/stats.h"

#define REGRESSION_ALL UINT32_MAX
#define REGRESSION_NONE INFINITY /* a ridge that leaves no prediction: P = 0 */

struct regression {
    size_t m, d; /* of c and x */
    uint32_t n_sources;
    uint64_t n[STATS_DOMAINS_MAX];
    /* [m + d] of the joint vector: numbers of x are regressed on codes of their own block alone; NULL: on
     * all; borrowed, set after regression_begin() */
    const uint8_t *block;
    /* of the joint vector [c ; x]: one set for each source, then the sets without each source, then of all */
    double *mean;    /* [2 n_sources + 1, m + d] */
    double *scatter; /* [2 n_sources + 1, m + d, m + d] centred; while adding not centred, lower triangles */
    double *rows;    /* [most, m + d] scratch */
};

/**
 * regression_init() - moments of all rows
 * @c, @x:      [n, m], [n, d]
 * @source_of:  [n] number of each row's source, below @n_sources; NULL: one source
 *
 * Return: 0; -ENOMEM. Call regression_deinit() in both cases.
 */
int regression_init(struct regression *r, const double *c, size_t m, const double *x, size_t d, size_t n,
                    const uint8_t *source_of, uint32_t n_sources);
void regression_deinit(struct regression *r);

/**
 * regression_begin() - the same in blocks of rows: begin, add all blocks, end
 * @most: rows of the largest block
 *
 * The rows are differences from any point near their mean.
 *
 * Return: 0; -ENOMEM. Call regression_deinit() in both cases.
 */
int regression_begin(struct regression *r, size_t m, size_t d, uint32_t n_sources, size_t most);
/* @c: [n, m], row stride @stride; @x: [n, d]. */
void regression_add(struct regression *r, uint32_t source, const float *c, size_t stride, const float *x,
                    size_t n);
void regression_end(struct regression *r);

/* [m + d]: E[c], then E[x], over all sources but @without. */
const double *regression_mean(const struct regression *r, uint32_t without);

/* ret_P [d, m] and ret_mean [d] = E[x - P c] of all sources but @without (REGRESSION_ALL: of all).
 * Return: 0; -EDOM; -ENOMEM. */
int regression_fit(const struct regression *r, uint32_t without, double ridge, double *ret_P,
                   double *ret_mean);

/* ret_S [d, d]: covariance of x - P c over all sources but @without. */
int regression_covariance(const struct regression *r, uint32_t without, const double *P, double *ret_S);

/* ret_E [d, d]: E[u u'] over @source alone, u = x - P c - mean; 0 without rows. Return: 0; -ENOMEM. */
int regression_second_moment(const struct regression *r, uint32_t source, const double *P, const double *mean,
                             double *ret_E);

/**
 * regression_choose_ridge() - the ridge with the least error on sources that were left out
 * @ridges: [n_ridges], ascending
 * @M:      [d, d] weight of errors
 * @share:  [n_sources] weights of sources
 */
int regression_choose_ridge(const struct regression *r, const double *ridges, size_t n_ridges,
                            const double *M, const double *share, double *ret_ridge);
