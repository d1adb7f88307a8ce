/*
 * V predicted from K codes (DESIGN 3.2), of its own head or of all heads of its layer:
 *     P = Cov(v, c) (G + 1e-3 tr(G)/n I)^-1
 * with c the decoded unit-variance K codes and G their centred covariance.
 * V's codec codes the residual v - P c - mu_V.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/linalg.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

void solve_stored_order(const struct head *h, struct stored_order *ret)
{
    ret->n_bands = ret->n_coords = 0;
    for (unsigned bits = TABLE_BITS_MAX; bits > 0; bits--)
        for (uint32_t b = 0; b < h->t.n_bands; b++)
            if (h->bits[b] == bits) {
                ret->band[ret->n_bands++] = b;
                ret->n_coords += band_coords(&h->t, b);
            }
}

int solve_codes(const struct solver *v, uint32_t head_side, const double *mean, const float *x, double *ret_c,
                size_t stride)
{
    const struct head *h = &v->heads[head_side];
    size_t n = v->s->n_held, r = h->t.n_coords;
    _cleanup_(freep) float *z = malloc((n * r + 1) * sizeof(*z));
    struct stored_order order;
    int err = z ? transform_apply(&h->t, mean, x, n, z) : -ENOMEM;

    if (err < 0)
        return err;

    solve_stored_order(h, &order);
    for (uint32_t i = 0; i < order.n_bands; i++) {
        uint32_t band = order.band[i], n_coords = band_coords(&h->t, band);
        const struct levels *l = &v->levels[head_side % 2][h->bits[band]];

        for (size_t t = 0; t < n; t++)
            for (uint32_t c = 0; c < n_coords; c++)
                ret_c[t * stride + c] =
                    level_z(l, quantise_fast(l, h->bits[band], z[t * r + band * BAND_COORDS + c]));
        ret_c += n_coords;
    }

    return 0;
}

size_t solve_predictors(const struct solver *v, uint32_t head)
{
    struct head_run run = prediction_heads(v->o.v_from, v->g->n_kv_heads, head % v->g->n_kv_heads);
    uint32_t first = head / v->g->n_kv_heads * v->g->n_kv_heads + run.first;
    size_t n = 0;

    for (uint32_t h = first; h < first + run.n; h++) {
        struct stored_order order;

        solve_stored_order(&v->heads[2 * h], &order);
        n += order.n_coords;
    }
    return n;
}

int solve_predictor_codes(const struct solver *v, uint32_t head, double *ret_c, size_t stride)
{
    struct head_run run = prediction_heads(v->o.v_from, v->g->n_kv_heads, head % v->g->n_kv_heads);
    uint32_t first = head / v->g->n_kv_heads * v->g->n_kv_heads + run.first;

    for (uint32_t h = first; h < first + run.n; h++) {
        struct stored_order order;
        int r;

        solve_stored_order(&v->heads[2 * h], &order);
        r = solve_codes(v, 2 * h, v->heads[2 * h].mean, stats_sample_rows(v->s, 2 * h), ret_c, stride);
        if (r < 0)
            return r;

        ret_c += order.n_coords;
    }

    return 0;
}

void solve_centre(double *a, size_t n, size_t m, double *ret_mean)
{
    memset(ret_mean, 0, m * sizeof(*ret_mean));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < m; i++)
            ret_mean[i] += a[t * m + i];
    for (size_t i = 0; i < m; i++)
        ret_mean[i] /= (double) n;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < m; i++)
            a[t * m + i] -= ret_mean[i];
}

int solve_regress(const double *c, const double *v, size_t n, size_t m, size_t d, double ridge_share,
                  double *ret_P)
{
    _cleanup_(freep) double *G = malloc((m * m + m * d) * sizeof(*G));
    double *X, ridge;
    int r;

    if (!G)
        return -ENOMEM;

    X = G + m * m; /* [m, d] Cov(c, v), then P' */
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int) m, (int) m, (int) n, 1.0 / (double) n, c,
                (int) m, c, (int) m, 0.0, G, (int) m);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int) m, (int) d, (int) n, 1.0 / (double) n, c,
                (int) m, v, (int) d, 0.0, X, (int) d);
    ridge = ridge_share * linalg_trace(m, G) / (double) m;
    for (size_t i = 0; i < m; i++)
        G[i * m + i] += ridge;
    r = linalg_solve(m, d, G, X);
    if (r < 0)
        return r;

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < m; j++)
            ret_P[i * m + j] = X[j * d + i];
    return 0;
}

/* Without stored K codes: the residual is v - mean. */
static void solve_predict_no_prediction(struct solver *v, uint32_t hs, float *ret_u, double *ret_S)
{
    size_t d = v->g->d, n = v->s->n_held;
    const float *x = stats_sample_rows(v->s, hs);
    struct head *h = &v->heads[hs];

    free(h->predict);
    h->predict = NULL;
    h->n_predict = 0;
    memcpy(h->mean, v->s->mean + hs * d, d * sizeof(*h->mean));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++)
            ret_u[t * d + i] = (float) ((double) x[t * d + i] - h->mean[i]);
    solver_covariance(v, hs, ret_S);
}

static int solve_predict_from_codes(struct solver *v, uint32_t hs_v, size_t m, float *ret_u, double *ret_S)
{
    size_t d = v->g->d, n = v->s->n_held;
    _cleanup_(freep) double *c = malloc(n * (m + d) * sizeof(*c));
    _cleanup_(freep) double *P = malloc(d * m * sizeof(*P));
    _cleanup_(freep) double *mean_c = malloc(m * sizeof(*mean_c));
    double mean_v[GEOMETRY_DIM_MAX], *x;
    const float *from = stats_sample_rows(v->s, hs_v);
    struct head *h = &v->heads[hs_v];
    int r;

    if (!c || !P || !mean_c)
        return -ENOMEM;

    x = c + n * m;
    for (size_t i = 0; i < n * d; i++)
        x[i] = (double) from[i];
    r = solve_predictor_codes(v, hs_v / 2, c, m);
    if (r < 0)
        return r;

    solve_centre(c, n, m, mean_c);
    solve_centre(x, n, d, mean_v);
    r = solve_regress(c, x, n, m, d, SOLVE_PREDICT_RIDGE, P);
    if (r < 0)
        return r;

    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) m, -1.0, c, (int) m, P,
                (int) m, 1.0, x, (int) d);
    for (size_t i = 0; i < n * d; i++)
        ret_u[i] = (float) x[i];
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) n, 1.0 / (double) n, x, (int) d, 0.0,
                ret_S, (int) d);
    linalg_mirror(d, ret_S);
    /* mu_V = E[v - P c] */
    for (size_t i = 0; i < d; i++) {
        h->mean[i] = mean_v[i];
        for (size_t j = 0; j < m; j++)
            h->mean[i] -= P[i * m + j] * mean_c[j];
    }

    free(h->predict);
    h->predict = take_ptr(P);
    h->n_predict = (uint32_t) m;
    return 0;
}

int solve_predict_head(struct solver *v, uint32_t layer, uint32_t head, float *ret_u, double *ret_S,
                       struct errmsg *e)
{
    uint32_t hs_v = head_side_index(v->g, layer, head, SIDE_V);
    size_t m = solve_predictors(v, hs_v / 2);
    int r;

    if (m == 0) {
        solve_predict_no_prediction(v, hs_v, ret_u, ret_S);
        return 0;
    }

    if (v->s->cross) {
        struct stored_order order;

        /* moments hold the covariance of a value with the keys of its own head only */
        solve_stored_order(&v->heads[hs_v - 1], &order);
        r = solve_predict_moments(v, hs_v - 1, hs_v, &order, ret_S);
    } else {
        r = solve_predict_from_codes(v, hs_v, m, ret_u, ret_S);
    }

    return r < 0 ? solver_fail(layer, head, SIDE_V, r, e) : 0;
}

int solve_fit_residuals(struct solver *v, struct errmsg *e)
{
    size_t d = v->g->d, n = v->s->n_held;
    const double zero[GEOMETRY_DIM_MAX] = {0}; /* the mean of the residuals is 0: mu_V contains it */
    _cleanup_(freep) float *u = malloc((n * d + 1) * sizeof(*u));
    _cleanup_(freep) double *S = malloc(d * d * sizeof(*S));

    if (!u || !S)
        return fail(e, -ENOMEM, "out of memory for predicting values");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        solver_progress(v, "values from keys", (double) layer / v->g->n_layers);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            int r = solve_predict_head(v, layer, head, u, S, e);

            if (r < 0)
                return r;

            r = solve_fit_head(v, layer, head, SIDE_V, zero, S, u, n, e);
            if (r < 0)
                return r;
        }
    }

    return 0;
}
