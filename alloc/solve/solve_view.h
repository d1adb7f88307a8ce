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

#include "alloc/solve/solve_codes.h"
#include "alloc/solve/solve_rows.h"
#include "alloc/solve/solver.h"

struct solve_view {
    struct solver *v;
    uint32_t hs;
    size_t d;
    double *S;          /* [d, d] covariance with mean and P of all sources: the codec's basis */
    uint32_t n_sources; /* that are left out; 0: the view is that of all sources */
    double *left;       /* [n_sources, d, d] E[u u'] of the source that was left out */
    double *rest;       /* [n_sources, d, d] covariance of the others with mean and P of these */
    /* u = x - mean - P c of a row: by source, of the others; without sources left out, one set of all */
    double *mean;            /* [max(n_sources, 1), d] */
    float *P;                /* [max(n_sources, 1), d, keys.m], or NULL */
    struct solve_keys keys;  /* with P */
    float *codes;            /* [SOLVE_BLOCK, keys.m] scratch, with P */
    struct transform *bases; /* [n_sources] of rest, made by solve_view_fit_bases() */
};

/* Allocates everything for a head-side but P; contents are undefined. Return: 0; -ENOMEM. */
int solve_view_init(struct solver *v, uint32_t head_side, struct solve_view *w);
void solve_view_deinit(struct solve_view *w);

/* The view without prediction, and the head's mean. Return: 0; -ENOMEM. */
int solve_view_plain(struct solve_view *w);

/* ret_u [r->n, d]. Return: 0; -EDOM. */
int solve_view_read(struct solve_view *w, const struct solve_rows *r, float *ret_u);

/* The bases without each source. Return: 0; -EDOM; -ENOMEM. */
int solve_view_fit_bases(struct solve_view *w);

/**
 * solve_view_fit() - the transform of the head-side
 *
 * Basis of w->S under the metric; the scale of a band is the deviation of its coordinates in sources that
 * were left out, in the bases without these.
 *
 * Return: 0; -EDOM; -ENOMEM.
 */
int solve_view_fit(struct solve_view *w);

/**
 * solve_view_coordinates() - coordinates of every @step-th row, of each in the basis without its source
 * @ret_z: [solve_rows_count(), n_coords], in units of the scales of the head-side's transform
 *
 * solve_view_fit() or solve_view_fit_bases() was called. Return: 0; -EDOM; -ENOMEM.
 */
int solve_view_coordinates(struct solve_view *w, size_t step, float *ret_z);
