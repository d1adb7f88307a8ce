/*
 * What the codec of one head-side will code, as a source sees it that the table was not fitted to.
 *
 * A table is fitted to several sources of text and reads others. A covariance of all sources understates
 * what another source has in directions that vary little here. So each source is left out once: means,
 * predictions and bases are fitted to the others, and scales, levels and curves to the vectors of the one
 * that was left out. The codec itself has the means, the prediction and the basis of all sources. With one
 * source nothing can be left out, and the view is that of the source itself.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solver.h"

struct solve_view {
    size_t n, d;
    float *u;           /* [n, d] x - mean, or v - P c - mean, mean and P without the source of the row */
    double *S;          /* [d, d] covariance with mean and P of all sources: the codec's basis */
    uint32_t n_sources; /* that are left out; 0: u is that of all sources */
    double *left;       /* [n_sources, d, d] E[u u'] of the source that was left out */
    double *rest;       /* [n_sources, d, d] covariance of the others with mean and P of these */
};

/* Allocates everything for a head-side; contents are undefined. Return: 0; -ENOMEM. */
int solve_view_init(const struct solver *v, struct solve_view *w);
void solve_view_deinit(struct solve_view *w);

/* The view of a head-side without prediction, and the head's mean. Return: 0; -ENOMEM. */
int solve_view_plain(struct solver *v, uint32_t head_side, struct solve_view *w);

/**
 * solve_view_fit() - the transform of a head-side
 *
 * Basis of w->S under @M; the scale of a band is the deviation of its coordinates in sources that were left
 * out, in the bases without these.
 *
 * Return: 0; -EDOM; -ENOMEM.
 */
int solve_view_fit(const struct solver *v, const struct solve_view *w, const double *M, uint64_t seed,
                   struct transform *t);

/* Coordinates [n, t->n_coords] of the rows, of each in the basis without its source, in units of the scales
 * of @t. Return: 0; -EDOM; -ENOMEM. */
int solve_view_coordinates(const struct solver *v, const struct solve_view *w, const double *M, uint64_t seed,
                           const struct transform *t, float *ret_z);
