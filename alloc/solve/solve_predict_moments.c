/*
 * V's prediction P from covariances alone (DESIGN 3.5), for statistics without vectors. See solve_internal.h.
 *
 * Keys and values are assumed jointly normal. Then z = E (k - mu_K) is normal with covariance Z = E S_K E',
 * and the moments of a code c_i = Q(z_i) that P needs are:
 *
 *   E c_i, E c_i^2, E c_i z_i       sums over the quantiser's cells, exact, with z_i's own variance
 *   g_i = E c_i z_i / Z_ii          the gain: c_i = g_i z_i + noise that is uncorrelated with every
 *                                   normal variable (Bussgang)
 *   Cov(v, c_i) = g_i Cov(v, z_i)   exact
 *   G_ii = E c_i^2 - (E c_i)^2      exact
 *   G_ij = g_i g_j Z_ij             assumes that the noises of two coordinates are uncorrelated: the first
 *                                   term of the series in their correlation; the next is of third order
 *
 * G is positive semi-definite, since G_ii >= g_i^2 Z_ii. With these, P and mu_V are computed as in
 * solve_predict.c. The covariance of the residual is S_V - P Cov(c,v) - Cov(v,c) P' + P G P'.
 */
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static double predict_moments_density(double x)
{
    return isfinite(x) ? exp(-0.5 * x * x) / sqrt(2 * M_PI) : 0;
}

static double predict_moments_cumulative(double x)
{
    return 0.5 * erfc(-x / M_SQRT2);
}

void solve_gaussian_code(const struct levels *l, unsigned b, double variance, struct gaussian_code *ret)
{
    double s = sqrt(variance), mean = 0, square = 0, product = 0;

    if (l->state_bits > 0) {
        /* measured at variance 1; noise that does not depend on z stays as it is */
        double gain = (double) l->normal_product, noise = (double) l->normal_square - gain * gain;

        *ret = (struct gaussian_code){.gain = gain,
                                      .variance = (noise > 0 ? noise : 0) + gain * gain * variance};
        return;
    }

    if (!(variance > 0)) { /* a constant: one code */
        mean = level_z(l, quantise_fast(l, b, 0));
        *ret = (struct gaussian_code){.mean = mean};
        return;
    }

    for (unsigned q = 0; q < 1u << b; q++) {
        double lo = q == 0 ? -INFINITY : (double) l->threshold[q - 1] / s;
        double hi = q + 1 == 1u << b ? INFINITY : (double) l->threshold[q] / s;
        double level = level_z(l, q), share = predict_moments_cumulative(hi) - predict_moments_cumulative(lo);

        mean += level * share;
        square += level * level * share;
        /* level E[z; lo < z/s < hi] */
        product += level * s * (predict_moments_density(lo) - predict_moments_density(hi));
    }

    *ret = (struct gaussian_code){.mean = mean, .gain = product / variance, .variance = square - mean * mean};
}

double solve_contrast(const struct levels *l, unsigned b, double contrast)
{
    struct gaussian_code code;

    if (contrast == 0)
        return 1;

    solve_gaussian_code(l, b, 1, &code);
    return 1 + contrast * (code.variance / (code.gain * code.gain) - 1);
}

/* The matrices of one (layer, head); m coordinates with codes. */
struct joint {
    size_t m, d;
    double *E;    /* [m, d] rows of K's encode matrix in stored order */
    double *Z;    /* [m, m] covariance of z, then G */
    double *cov;  /* [m, d] Cov(c, v) */
    double *X;    /* [m, d] P' */
    double *S;    /* [d, d] covariance of keys; scratch */
    double *F;    /* [m, max(m, d)] scratch */
    double *mean; /* [m] E c */
};

static void predict_moments_joint_deinit(struct joint *j)
{
    free(j->E);
}

static int predict_moments_joint_init(struct joint *j, size_t m, size_t d)
{
    size_t wide = m > d ? m : d;

    *j = (struct joint){.m = m, .d = d};
    j->E = malloc((3 * m * d + m * m + d * d + m * wide + m) * sizeof(double));
    if (!j->E)
        return -ENOMEM;

    j->Z = j->E + m * d;
    j->cov = j->Z + m * m;
    j->X = j->cov + m * d;
    j->S = j->X + m * d;
    j->F = j->S + d * d;
    j->mean = j->F + m * wide;
    return 0;
}

/* Z, and Cov(z, v) into cov. */
static void predict_moments_coordinates(struct joint *j, const struct solver *v, uint32_t hs_k,
                                        const struct stored_order *order)
{
    const struct head *h = &v->heads[hs_k];
    size_t m = j->m, d = j->d, to = 0;
    const double *cross = v->s->cross + hs_k / 2 * d * d; /* [v, k] */

    for (uint32_t i = 0; i < order->n_bands; i++) {
        size_t n = band_coords(&h->t, order->band[i]);

        memcpy(j->E + to * d, h->t.enc + (size_t) order->band[i] * BAND_COORDS * d, n * d * sizeof(double));
        to += n;
    }

    solver_covariance(v, hs_k, j->S);
    linalg_product(m, d, d, j->E, j->S, j->F);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) m, (int) m, (int) d, 1.0, j->F, (int) d, j->E,
                (int) d, 0.0, j->Z, (int) m);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) m, (int) d, (int) d,
                1.0 / (double) v->s->n_tokens, j->E, (int) d, cross, (int) d, 0.0, j->cov, (int) d);
}

/* From z to its codes: replaces Z by G and Cov(z, v) by Cov(c, v), and computes E c. */
static void predict_moments_quantise(struct joint *j, const struct solver *v, uint32_t hs_k,
                                     const struct stored_order *order)
{
    const struct head *h = &v->heads[hs_k];
    struct gaussian_code code[GEOMETRY_DIM_MAX] = {{0}};
    size_t m = j->m, at = 0;

    for (uint32_t i = 0; i < order->n_bands; i++) {
        unsigned b = h->bits[order->band[i]];

        for (size_t end = at + band_coords(&h->t, order->band[i]); at < end; at++)
            solve_gaussian_code(&v->levels[SIDE_K][b], b, j->Z[at * m + at], &code[at]);
    }

    for (size_t i = 0; i < m; i++) {
        for (size_t k = 0; k < m; k++)
            j->Z[i * m + k] *= code[i].gain * code[k].gain;
        j->Z[i * m + i] = code[i].variance;
        for (size_t k = 0; k < j->d; k++)
            j->cov[i * j->d + k] *= code[i].gain;
        j->mean[i] = code[i].mean;
    }
}

/* ret_S := S_V - X'cov - cov'X + X'G X */
static void predict_moments_residual_covariance(struct joint *j, const struct solver *v, uint32_t hs_v,
                                                double *ret_S)
{
    int m = (int) j->m, d = (int) j->d;

    solver_covariance(v, hs_v, ret_S);
    cblas_dsyr2k(CblasRowMajor, CblasLower, CblasTrans, d, m, -1.0, j->X, d, j->cov, d, 1.0, ret_S, d);
    linalg_product(j->m, j->d, j->m, j->Z, j->X, j->F);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, d, d, m, 1.0, j->X, d, j->F, d, 0.0, j->S, d);
    for (size_t i = 0; i < j->d; i++)
        for (size_t k = 0; k <= i; k++)
            ret_S[i * j->d + k] += 0.5 * (j->S[i * j->d + k] + j->S[k * j->d + i]);
    linalg_mirror(j->d, ret_S);
}

int solve_predict_moments(struct solver *v, uint32_t hs_k, uint32_t hs_v, const struct stored_order *order,
                          double *ret_S)
{
    size_t d = v->g->d, m = order->n_coords;
    _cleanup_(predict_moments_joint_deinit) struct joint j = {0};
    _cleanup_(freep) double *P = malloc(d * m * sizeof(*P)), *G = malloc(m * m * sizeof(*G));
    struct head *h = &v->heads[hs_v];
    double ridge;
    int r = P && G ? predict_moments_joint_init(&j, m, d) : -ENOMEM;

    if (r < 0)
        return r;

    predict_moments_coordinates(&j, v, hs_k, order);
    predict_moments_quantise(&j, v, hs_k, order);
    memcpy(G, j.Z, m * m * sizeof(*G));
    memcpy(j.X, j.cov, m * d * sizeof(*j.X));
    ridge = SOLVE_PREDICT_RIDGE * linalg_trace(m, G) / (double) m;
    for (size_t i = 0; i < m; i++)
        G[i * m + i] += ridge;
    r = linalg_solve(m, d, G, j.X);
    if (r < 0)
        return r;

    predict_moments_residual_covariance(&j, v, hs_v, ret_S);
    for (size_t i = 0; i < d; i++) { /* mu_V = E[v - P c] */
        h->mean[i] = v->s->mean[hs_v * d + i];
        for (size_t k = 0; k < m; k++) {
            P[i * m + k] = j.X[k * d + i];
            h->mean[i] -= P[i * m + k] * j.mean[k];
        }
    }

    free(h->predict);
    h->predict = take_ptr(P);
    h->n_predict = (uint32_t) m;
    return 0;
}
