/*
 * V predicted from K codes (DESIGN 3.2), of its own head or of all heads of its layer:
 *     P = Cov(v, c) (G + 1e-3 tr(G)/n I)^-1
 * with c the decoded unit-variance K codes and G their centred covariance.
 * V's codec codes the residual v - P c - mu_V.
 */
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve_internal.h"
#include "alloc/solve_regression.h"
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
    size_t n = v->n, r = h->t.n_coords;
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
        _cleanup_(freep) float *x = NULL;
        struct stored_order order;
        int r;

        solve_stored_order(&v->heads[2 * h], &order);
        x = solver_samples(v, 2 * h);
        r = x ? solve_codes(v, 2 * h, v->heads[2 * h].mean, x, ret_c, stride) : -ENOMEM;
        if (r < 0)
            return r;

        ret_c += order.n_coords;
    }

    return 0;
}

/* With sources left out, from hardly any ridge to no prediction. Steps of 10 find the least error to 1 %. */
static const double predict_ridges[] = {1e-3, 1e-2, 1e-1, 1, REGRESSION_NONE};

int solve_predict_choose(const struct solver *v, uint32_t hs, const struct regression *r,
                         const double *ridges, size_t n_ridges, double *ret_ridge)
{
    size_t dd = (size_t) v->g->d * v->g->d;
    _cleanup_(freep) double *S = NULL;
    int err;

    if (!v->leaves_out)
        return 0;

    S = malloc(2 * dd * sizeof(*S));
    if (!S)
        return -ENOMEM;

    solver_covariance(v, hs, S);
    err = solver_metric(v, hs, S, S + dd);
    return err < 0 ? err : regression_choose_ridge(r, ridges, n_ridges, S + dd, v->share, ret_ridge);
}

/* Rows of @source (REGRESSION_ALL: of all): u := x - P c - mean. @rows: [n, d] is scratch. */
static void solve_predict_residuals(const struct solver *v, struct solve_view *w, uint32_t source,
                                    const double *c, const double *x, const double *P, size_t m,
                                    const double *mean)
{
    size_t d = w->d;

    for (size_t t = 0; t < w->n; t++) {
        if (source != REGRESSION_ALL && v->source_of[t] != source)
            continue;
        for (size_t i = 0; i < d; i++)
            w->u[t * d + i] =
                (float) (x[t * d + i] - mean[i] - cblas_ddot((int) m, P + i * m, 1, c + t * m, 1));
    }
}

/* The residuals of every source with the prediction fitted without it. */
static int solve_predict_leave_out(const struct solver *v, struct solve_view *w, const struct regression *r,
                                   double ridge, const double *c, const double *x, double *P)
{
    size_t dd = w->d * w->d;
    double mean[GEOMETRY_DIM_MAX];

    for (uint32_t i = 0; i < w->n_sources; i++) {
        int err = regression_fit(r, i, ridge, P, mean);

        if (err == 0)
            err = regression_covariance(r, i, P, w->rest + i * dd);
        if (err == 0)
            err = regression_second_moment(r, i, P, mean, w->left + i * dd);
        if (err < 0)
            return err;

        solve_predict_residuals(v, w, i, c, x, P, r->m, mean);
    }

    return 0;
}

static int solve_predict_from_codes(struct solver *v, uint32_t hs_v, size_t m, struct solve_view *w)
{
    size_t d = v->g->d, n = v->n;
    _cleanup_(freep) float *from = solver_samples(v, hs_v);
    _cleanup_(freep) double *c = calloc(n * (m + d) + 1, sizeof(*c));
    _cleanup_(freep) double *P = malloc(d * m * sizeof(*P));
    _cleanup_(regression_deinit) struct regression reg = {.m = 0};
    struct head *h = &v->heads[hs_v];
    double ridge = SOLVE_PREDICT_RIDGE, *x;
    int r;

    if (!from || !c || !P)
        return -ENOMEM;

    x = c + n * m;
    for (size_t i = 0; i < n * d; i++)
        x[i] = (double) from[i];
    r = solve_predictor_codes(v, hs_v / 2, c, m);
    if (r == 0)
        r = regression_init(&reg, c, m, x, d, n, w->n_sources > 0 ? v->source_of : NULL,
                            w->n_sources > 0 ? w->n_sources : 1);
    if (r == 0)
        r = solve_predict_choose(v, hs_v, &reg, predict_ridges,
                                 sizeof(predict_ridges) / sizeof(*predict_ridges), &ridge);
    if (r == 0)
        r = solve_predict_leave_out(v, w, &reg, ridge, c, x, P);
    if (r == 0)
        r = regression_fit(&reg, REGRESSION_ALL, ridge, P, h->mean);
    if (r == 0)
        r = regression_covariance(&reg, REGRESSION_ALL, P, w->S);
    if (r < 0)
        return r;

    if (w->n_sources == 0)
        solve_predict_residuals(v, w, REGRESSION_ALL, c, x, P, m, h->mean);
    free(h->predict);
    h->predict = take_ptr(P);
    h->n_predict = (uint32_t) m;
    return 0;
}

int solve_predict_head(struct solver *v, uint32_t layer, uint32_t head, struct solve_view *w)
{
    uint32_t hs_v = head_side_index(v->g, layer, head, SIDE_V);
    size_t m = solve_predictors(v, hs_v / 2);
    struct head *h = &v->heads[hs_v];
    struct stored_order order;

    if (m == 0) {
        free(h->predict);
        h->predict = NULL;
        h->n_predict = 0;
        return solve_view_plain(v, hs_v, w);
    }

    if (!v->s->cross)
        return solve_predict_from_codes(v, hs_v, m, w);

    /* moments hold the covariance of a value with the keys of its own head only */
    solve_stored_order(&v->heads[hs_v - 1], &order);
    return solve_predict_moments(v, hs_v - 1, hs_v, &order, w->S);
}

int solve_fit_residuals(struct solver *v, struct errmsg *e)
{
    _cleanup_(solve_view_deinit) struct solve_view w = {0};

    if (solve_view_init(v, &w) < 0)
        return fail(e, -ENOMEM, "out of memory for predicting values");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        solver_progress(v, "values from keys", (double) layer / v->g->n_layers);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            int r = solve_predict_head(v, layer, head, &w);

            if (r == 0)
                r = solve_fit_head(v, head_side_index(v->g, layer, head, SIDE_V), &w);
            if (r < 0)
                return solver_fail(layer, head, SIDE_V, r, e);
        }
    }

    return 0;
}
