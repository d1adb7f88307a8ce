/*
 * The transform of one head-side (DESIGN 3.2): coordinates in which the distortion e'Me is
 * plain squared error, in descending order of variance, grouped in bands of 8; each band
 * is rotated and scaled to unit variance.
 *
 *   A = (M + 1e-3 tr(M)/d I)^(1/2),  A S A = U diag(w) U',  w descending
 *   z = H U' A (x - mu) / scale per band,  x^ = mu + A^-1 U H' scale z^
 *
 * so that e'Me = sum over bands of scale^2 |z^ - z|^2 (up to the ridge) and
 * leaving out the smallest w is optimal.
 *
 * In two blocks of dimensions, this is done for each block with its own part of M and S: the coordinates of
 * the first block, in descending order, then those of the second. What M says of the errors of both together
 * is left out, as if they were independent.
 */
#pragma once

#include <stdint.h>

#include "alloc/table/table.h"

struct errmsg;

#define BAND_COORDS 8

struct transform {
    uint32_t d;
    uint32_t n_coords; /* coordinates with w above 1e-12 of the largest; 0: rank 0 */
    uint32_t n_bands;  /* ceil(n_coords / 8); the last may be short */
    double trace;      /* sum of w: the distortion of storing nothing */
    double *w;         /* [d] */
    double *enc;       /* [d, d]: row i gives z_i from x - mu, unit variance on average over its band */
    double *dec;       /* [d, d]: row i is the share of z_i in x^ (a column of D) */
    double scale[TABLE_HALF_TILES_MAX]; /* [n_bands] deviation of the band's coordinates before scaling */
};

static inline uint32_t band_coords(const struct transform *t, uint32_t band)
{
    uint32_t left = t->n_coords - band * BAND_COORDS;

    return left < BAND_COORDS ? left : BAND_COORDS;
}

/* Dimensions that have bases of their own. */
struct transform_blocks {
    uint32_t n_first; /* dimensions of the first block, a multiple of BAND_COORDS; 0: one block of all */
    uint16_t dim[GEOMETRY_DIM_MAX]; /* of two blocks, those of the first, then the others */
};

/* A and its inverse for one metric, which serve many covariances. */
struct transform_roots {
    struct transform_blocks blocks;
    double *A,
        *inverse; /* [d, d], or one block after the other; NULL: no query reads this head-side, M = 0 */
};

/* @blocks: of the transforms; NULL: one. Return: 0; -EDOM: M is not finite or has no eigenvalues; -ENOMEM. */
int transform_roots_init(struct transform_roots *r, uint32_t d, const double *M,
                         const struct transform_blocks *blocks);
void transform_roots_deinit(struct transform_roots *r);

int transform_init(struct transform *t, uint32_t d);
void transform_deinit(struct transform *t);

/**
 * transform_fit() - the transform of a covariance under a metric
 * @S, @M: [d, d] symmetric
 * @seed:  for the signs of this head-side's rotations
 *
 * tr M = 0 or S = 0 gives rank 0.
 *
 * Return: 0; -EDOM: not finite or no eigenvalues (the caller names the head-side);
 * -ENOMEM. On failure @t has rank 0.
 */
int transform_fit(struct transform *t, const double *S, const double *M, uint64_t seed);

/* The same with the roots of the metric, in their blocks. A first block has all of its coordinates. */
int transform_fit_roots(struct transform *t, const double *S, const struct transform_roots *roots,
                        uint64_t seed);

/* Gives the bands new scales: @scale [n_bands]. A band whose scale is 0 keeps its own. */
void transform_rescale(struct transform *t, const double *scale);

/* z [n, n_coords] := unit-variance coordinates of x [n, d] - mean; binary32 products. Return: 0; -EDOM: not
 * finite in binary32; -ENOMEM. */
int transform_apply(const struct transform *t, const double *mean, const float *x, size_t n, float *ret_z);
