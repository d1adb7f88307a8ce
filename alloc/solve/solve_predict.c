/*
 * V predicted from K codes (DESIGN 3.2), of its own head or of all heads of its layer:
 *     P = Cov(v, c) (G + 1e-3 tr(G)/n I)^-1
 * with c the decoded unit-variance K codes and G their centred covariance.
 * V's codec codes the residual v - P c - mu_V.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_regression.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* With sources left out, from hardly any ridge to no prediction. Steps of 10 find the least error to 1 %. */
static const double predict_ridges[] = {1e-3, 1e-2, 1e-1, 1, REGRESSION_NONE};

int solve_predict_choose(const struct solver *v, uint32_t hs, const struct regression *r,
                         const double *ridges, size_t n_ridges, double *ret_ridge)
{
    const struct head_metric *metric = NULL;
    int err;

    if (!v->leaves_out)
        return 0;

    err = solver_head_metric(v, hs, &metric);
    return err < 0 ? err : regression_choose_ridge(r, ridges, n_ridges, metric->M, v->share, ret_ridge);
}

/*
 * Tokens that P is fitted to while bits move, at least: an error of the prediction changes bits a
 * little, and the distortion by its square. The last fit takes all tokens.
 */
#define ROUND_TOKENS 4096
#define ROUND_TOKENS_PER_CODE 16

static size_t solve_predict_step(const struct solver *v, size_t m, enum predict_pass pass)
{
    size_t wanted = m * ROUND_TOKENS_PER_CODE > ROUND_TOKENS ? m * ROUND_TOKENS_PER_CODE : ROUND_TOKENS;

    return pass == PREDICT_FINAL || v->n <= wanted ? 1 : v->n / wanted;
}

/* Moments of [c ; v - mean], mean that of all sources. */
static int solve_predict_add_rows(struct solve_view *w, size_t step, struct regression *reg)
{
    const struct solver *v = w->v;
    size_t m = w->keys.m, d = w->d;
    _cleanup_(freep) float *x = malloc(SOLVE_BLOCK * d * sizeof(*x));
    struct solve_rows rows = {.n = 0};

    if (!x)
        return -ENOMEM;

    while (solve_rows_next(v, step, &rows)) {
        int err = solve_keys_read(&w->keys, &rows, w->codes, m);

        if (err < 0)
            return err;

        solve_rows_read(v, w->hs, &rows, w->mean, x);
        regression_add(reg, w->n_sources > 0 ? rows.source : 0, w->codes, m, x, rows.n);
    }
    regression_end(reg);
    return 0;
}

/* One set of the view: mean + @shift, and P. */
static void solve_predict_set(struct solve_view *w, size_t set, const double *P, const double *mean,
                              const double *shift)
{
    size_t d = w->d, n = d * w->keys.m;

    for (size_t i = 0; i < n; i++)
        w->P[set * n + i] = (float) P[i];
    for (size_t i = 0; i < d; i++)
        w->mean[set * d + i] = mean[i] + shift[i];
}

/* The prediction without every source, and what it leaves. */
static int solve_predict_leave_out(struct solve_view *w, const struct regression *r, double ridge,
                                   const double *shift, double *P)
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

        solve_predict_set(w, i, P, mean, shift);
    }

    return 0;
}

/* The prediction from all sources: the head's mean and P, and the view's without sources left out. */
static int solve_predict_all(struct solve_view *w, const struct regression *r, double ridge,
                             const double *shift, double *P)
{
    double *mean = w->v->heads[w->hs].mean;
    int err = regression_fit(r, REGRESSION_ALL, ridge, P, mean);

    if (err == 0)
        err = regression_covariance(r, REGRESSION_ALL, P, w->S);
    if (err < 0)
        return err;

    if (w->n_sources == 0)
        solve_predict_set(w, 0, P, mean, shift);
    for (size_t i = 0; i < w->d; i++)
        mean[i] += shift[i];
    return 0;
}

static int solve_predict_from_codes(struct solve_view *w, enum predict_pass pass)
{
    struct solver *v = w->v;
    size_t d = w->d, m = w->keys.m;
    _cleanup_(freep) double *P = malloc(d * m * sizeof(*P));
    _cleanup_(regression_deinit) struct regression reg = {.m = 0};
    struct head *h = &v->heads[w->hs];
    double ridge = SOLVE_PREDICT_RIDGE, shift[GEOMETRY_DIM_MAX] = {0};
    int r = regression_begin(&reg, m, d, w->n_sources > 0 ? w->n_sources : 1, SOLVE_BLOCK);

    w->P = malloc((w->n_sources > 0 ? w->n_sources : 1) * d * m * sizeof(*w->P));
    w->codes = malloc(SOLVE_BLOCK * m * sizeof(*w->codes));
    if (r < 0 || !P || !w->P || !w->codes)
        return -ENOMEM;

    solver_moments(v, w->hs, v->mask, shift, w->S);
    memcpy(w->mean, shift, d * sizeof(*shift));
    r = solve_predict_add_rows(w, solve_predict_step(v, m, pass), &reg);
    if (r == 0)
        r = solve_predict_choose(v, w->hs, &reg, predict_ridges,
                                 sizeof(predict_ridges) / sizeof(*predict_ridges), &ridge);
    if (r == 0)
        r = solve_predict_leave_out(w, &reg, ridge, shift, P);
    if (r == 0)
        r = solve_predict_all(w, &reg, ridge, shift, P);
    if (r < 0)
        return r;

    free(h->predict);
    h->predict = take_ptr(P);
    h->n_predict = (uint32_t) m;
    return 0;
}

int solve_predict_view(struct solve_view *w, enum predict_pass pass)
{
    struct solver *v = w->v;
    struct head *h = &v->heads[w->hs];
    struct stored_order order;
    int r;

    if (w->hs % 2 == SIDE_K || v->o.v_from == PREDICT_NONE)
        return solve_view_plain(w);

    r = solve_keys_init(&w->keys, v, w->hs / 2);
    if (r < 0)
        return r;

    if (w->keys.m == 0) {
        free(h->predict);
        h->predict = NULL;
        h->n_predict = 0;
        return solve_view_plain(w);
    }

    if (!v->s->cross)
        return solve_predict_from_codes(w, pass);

    /* moments hold the covariance of a value with the keys of its own head only */
    solve_stored_order(&v->heads[w->hs - 1], &order);
    return solve_predict_moments(v, w->hs - 1, w->hs, &order, w->S);
}

static int solve_predict_round(struct solver *v, uint32_t head_side, void *ctx)
{
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    int r = solve_view_init(v, head_side, &w);

    (void) ctx;
    if (r == 0)
        r = solve_predict_view(&w, PREDICT_ROUND);
    if (r == 0)
        r = solve_view_fit(&w);
    return r == 0 ? solve_fit_curves(&w) : r;
}

int solve_fit_residuals(struct solver *v, struct errmsg *e)
{
    return solver_each_side(v, "values from keys", 1u << SIDE_V, solve_predict_round, NULL, e);
}
