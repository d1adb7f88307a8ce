/*
 * Least-squares decoders: the linear map from codes as stored to vectors that leaves the least
 * squared error on the sampled tokens, instead of the encoder's inverse. The inverse would be
 * optimal if codes were z. But codes are levels: their errors are correlated with them, and K's codes
 * explain part of the quantisation error of V.
 *
 *   e     = x - mean - D c
 *   D'    = D + Cov(e, c) (G + l I)^-1
 *   mean' = mean + E[e] - (D' - D) E[c]
 *
 * with D the inverse (of V: [P | D_V], c = [c_K ; c_V]), G the centred covariance of c and l = 1e-4
 * tr(G) / n. The textbook regresses x: Cov(x, c) (G + l I)^-1. Regressing the error gives the same but for
 * the ridge, which here pulls towards the inverse: where samples are few, D' stays near D. The metric M does
 * not enter: the same D' is the least-squares solution of every direction.
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

/* The K codes of one layer, in units of z: [n, cols]; those of head h begin at column first[h]. */
struct keys {
    double *codes;
    size_t cols;
    size_t first[GEOMETRY_HEADS_MAX + 1];
};

static void solve_decode_keys_deinit(struct keys *k)
{
    free(k->codes);
}

static int solve_decode_keys_init(struct keys *k, const struct solver *v, uint32_t layer)
{
    uint32_t n_kv = v->g->n_kv_heads;

    for (uint32_t h = 0; h < n_kv; h++) {
        struct stored_order order;

        solve_stored_order(&v->heads[head_side_index(v->g, layer, h, SIDE_K)], &order);
        k->first[h] = k->cols;
        k->cols += order.n_coords;
    }

    k->first[n_kv] = k->cols;
    k->codes = malloc((v->n * k->cols + 1) * sizeof(*k->codes));
    if (!k->codes)
        return -ENOMEM;

    for (uint32_t h = 0; h < n_kv; h++) {
        uint32_t hs = head_side_index(v->g, layer, h, SIDE_K);
        _cleanup_(freep) float *x = solver_samples(v, hs);
        int r = x ? solve_codes(v, hs, v->heads[hs].mean, x, k->codes + k->first[h], k->cols) : -ENOMEM;

        if (r < 0)
            return r;
    }

    return 0;
}

/* One head-side: [n, ...] over samples. */
struct solve_decode_fit {
    size_t n, d, n_pred, m; /* m = n_pred + coordinates of its own */
    double *c;              /* [n, m] codes that the decoder reads */
    double *e;              /* [n, d] x - mean - P c, then the error of the inverse */
    double *D;              /* [d, m] the inverse, then the result */
};

static void solve_decode_fit_deinit(struct solve_decode_fit *f)
{
    free(f->c);
    free(f->e);
    free(f->D);
}

static int solve_decode_fit_init(struct solve_decode_fit *f, const struct solver *v, uint32_t hs,
                                 size_t n_pred)
{
    struct stored_order order;

    solve_stored_order(&v->heads[hs], &order);
    *f = (struct solve_decode_fit){.n = v->n, .d = v->g->d, .n_pred = n_pred, .m = n_pred + order.n_coords};
    f->c = malloc((f->n * f->m + 1) * sizeof(*f->c));
    f->e = calloc(f->n * f->d, sizeof(*f->e));
    f->D = calloc(f->d * f->m + 1, sizeof(*f->D));
    return f->c && f->e && f->D ? 0 : -ENOMEM;
}

/* e := x - mean - P c, and the predictors' codes; @from: their first column among the layer's. */
static int solve_decode_subtract_prediction(struct solve_decode_fit *f, const struct solver *v, uint32_t hs,
                                            const struct keys *k, size_t from)
{
    const struct head *h = &v->heads[hs];
    _cleanup_(freep) float *x = solver_samples(v, hs);

    if (!x)
        return -ENOMEM;

    for (size_t t = 0; t < f->n; t++) {
        for (size_t i = 0; i < f->d; i++)
            f->e[t * f->d + i] = (double) x[t * f->d + i] - h->mean[i];
        for (size_t j = 0; j < f->n_pred; j++)
            f->c[t * f->m + j] = k->codes[t * k->cols + from + j];
    }

    if (f->n_pred > 0)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) f->n, (int) f->d, (int) f->n_pred, -1.0,
                    f->c, (int) f->m, h->predict, (int) f->n_pred, 1.0, f->e, (int) f->d);
    return 0;
}

/* The codes of e, as a table's encoder makes them. */
static int solve_decode_encode(struct solve_decode_fit *f, const struct solver *v, uint32_t hs)
{
    const double zero[GEOMETRY_DIM_MAX] = {0};
    _cleanup_(freep) float *u = malloc(f->n * f->d * sizeof(*u));

    if (!u)
        return -ENOMEM;

    for (size_t i = 0; i < f->n * f->d; i++)
        u[i] = (float) f->e[i];
    return solve_codes(v, hs, zero, u, f->c + f->n_pred, f->m);
}

/* D := [P | the inverse of the encoder], columns in stored order. */
static void solve_decode_invert(struct solve_decode_fit *f, const struct solver *v, uint32_t hs)
{
    const struct head *h = &v->heads[hs];
    struct stored_order order;
    size_t col = f->n_pred;

    for (size_t i = 0; i < f->d; i++)
        for (size_t j = 0; j < f->n_pred; j++)
            f->D[i * f->m + j] = h->predict[i * f->n_pred + j];
    solve_stored_order(h, &order);
    for (uint32_t b = 0; b < order.n_bands; b++)
        for (uint32_t c = 0; c < band_coords(&h->t, order.band[b]); c++, col++)
            for (size_t i = 0; i < f->d; i++)
                f->D[i * f->m + col] = h->t.dec[((size_t) order.band[b] * BAND_COORDS + c) * f->d + i];
}

/* Copies D to the head's decoder. */
static int solve_decode_split(const struct solve_decode_fit *f, struct head *h)
{
    size_t own = f->m - f->n_pred;

    free(h->decoder.predict);
    free(h->decoder.dec);
    h->decoder.predict = f->n_pred > 0 ? malloc(f->d * f->n_pred * sizeof(double)) : NULL;
    h->decoder.dec = malloc((f->d * own + 1) * sizeof(double));
    if (!h->decoder.dec || (f->n_pred > 0 && !h->decoder.predict))
        return -ENOMEM;

    for (size_t i = 0; i < f->d; i++) {
        if (f->n_pred > 0)
            memcpy(h->decoder.predict + i * f->n_pred, f->D + i * f->m, f->n_pred * sizeof(double));
        memcpy(h->decoder.dec + i * own, f->D + i * f->m + f->n_pred, own * sizeof(double));
    }

    return 0;
}

/* With sources left out, from hardly any ridge to the inverse. */
static const double decode_ridges[] = {SOLVE_DECODE_RIDGE, 1e-2, 1e-1, 1, REGRESSION_NONE};

/* The correction of D and of the mean; the head's decoder is replaced. */
static int solve_decode_correct(const struct solver *v, struct solve_decode_fit *f, uint32_t hs)
{
    size_t n = f->n, d = f->d, m = f->m;
    struct head *h = &v->heads[hs];
    _cleanup_(freep) double *change = malloc(d * m * sizeof(*change));
    _cleanup_(freep) double *mean = malloc(d * sizeof(*mean));
    _cleanup_(regression_deinit) struct regression reg = {.m = 0};
    double ridge = SOLVE_DECODE_RIDGE;
    int r;

    if (!change || !mean)
        return -ENOMEM;

    /* P c is already subtracted from e */
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) (m - f->n_pred), -1.0,
                f->c + f->n_pred, (int) m, f->D + f->n_pred, (int) m, 1.0, f->e, (int) d);
    r = regression_init(&reg, f->c, m, f->e, d, n, v->leaves_out ? v->source_of : NULL,
                        v->leaves_out ? v->n_sources : 1);
    if (r == 0)
        r = solve_predict_choose(v, hs, &reg, decode_ridges, sizeof(decode_ridges) / sizeof(*decode_ridges),
                                 &ridge);
    if (r == 0)
        r = regression_fit(&reg, REGRESSION_ALL, ridge, change, mean); /* mean: E[e] - change E[c] */
    if (r != 0)
        return r;

    for (size_t i = 0; i < d; i++)
        mean[i] += h->mean[i];
    for (size_t i = 0; i < d * m; i++)
        f->D[i] += change[i];
    free(h->decoder.mean);
    h->decoder.mean = take_ptr(mean);
    return solve_decode_split(f, h);
}

static int solve_decode_fit_head_side(struct solver *v, uint32_t layer, uint32_t head, enum side side,
                                      const struct keys *k)
{
    uint32_t hs = head_side_index(v->g, layer, head, side);
    struct head_run run = prediction_heads(v->o.v_from, v->g->n_kv_heads, head);
    size_t from = k->first[run.first], n_pred = side == SIDE_V ? k->first[run.first + run.n] - from : 0;
    _cleanup_(solve_decode_fit_deinit) struct solve_decode_fit f = {0};
    int r = solve_decode_fit_init(&f, v, hs, n_pred);

    if (r < 0 || f.m == 0) /* the decoder is the mean alone */
        return r;

    r = solve_decode_subtract_prediction(&f, v, hs, k, from);
    if (r == 0)
        r = solve_decode_encode(&f, v, hs);
    if (r < 0)
        return r;

    solve_decode_invert(&f, v, hs);
    return solve_decode_correct(v, &f, hs);
}

int solve_fit_decoders(struct solver *v, struct errmsg *e)
{
    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        _cleanup_(solve_decode_keys_deinit) struct keys k = {0};
        int r = solve_decode_keys_init(&k, v, layer);

        if (r < 0)
            return solver_fail(layer, 0, SIDE_K, r, e);

        solver_progress(v, "decoders", (double) layer / v->g->n_layers);
        for (uint32_t i = 0; i < 2 * v->g->n_kv_heads; i++) {
            r = solve_decode_fit_head_side(v, layer, i / 2, (enum side)(i % 2), &k);
            if (r < 0)
                return solver_fail(layer, i / 2, (enum side)(i % 2), r, e);
        }
    }

    return 0;
}
