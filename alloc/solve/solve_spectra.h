/*
 * Spectra and bases of one side's heads, and the codec of one head at (r, b), for all of the paper's methods.
 * Letters: r rank, b bits, w_i weight and lambda_i eigenvalue of direction i (paper, eq:drb-preview).
 */
#pragma once

#include "alloc/solve/solve_internal.h"

struct spectra {
    uint32_t n_heads, d;
    double *w;      /* [n_heads, d] weights factor * lambda, descending */
    double *lambda; /* [n_heads, d] eigenvalues of the centred covariance, in that order */
    /* [n_heads, d] distortion of a unit error in direction i: sQ_i^2 for keys under METRIC_QUERY, else 1 */
    double *factor;
    double *basis; /* [n_heads, d, d] rows u_i' in that order */
};

int spectra_init(struct spectra *p, uint32_t n_heads, uint32_t d);
void spectra_deinit(struct spectra *p);

/* Fills @p from the statistics of every head of @side. */
int spectra_fill(const struct solver *v, enum side side, struct spectra *p, struct errmsg *e);

/**
 * spectra_rotation() - E = H_r U_r' / scale of one head: rows give coordinates of unit variance on average
 * @lambda, @basis: of the head; @r: 1..d
 * @ret_enc:   [r, d]
 * @ret_scale: rms of the retained coordinates; 0: they have no variance, and @ret_enc is unscaled
 *
 * Return: 0; -ENOMEM.
 */
int spectra_rotation(const struct solver *v, uint32_t head_side, const double *lambda, const double *basis,
                     uint32_t r, double *ret_enc, double *ret_scale);

/* Makes (r, b) the codec of a head-side: E = H_r U_r', D = U_r H_r', one scale, b for every band.
 * Return: 0; -ENOMEM. */
int spectra_make_head(struct solver *v, uint32_t head_side, const double *lambda, const double *basis,
                      uint32_t r, uint32_t b);
