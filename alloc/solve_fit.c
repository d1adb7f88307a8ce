/* Transform and curve of a head-side, from covariances and vectors
 * (DESIGN 3.2, 3.4). See solve_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/metric.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

/* Tokens that a measured curve quantises: 16384 numbers per band, which gives a distortion to about 1 %. */
#define CURVE_TOKENS 2048

/* The head's weighted curves, from every k-th token, so that all parts of the text count. */
static int solve_fit_curves(struct solver *v, struct head *h, const double *mean, const float *x, size_t n)
{
    size_t step = (n + CURVE_TOKENS - 1) / CURVE_TOKENS, n_used = 0, n_coords = h->t.n_coords, d = v->g->d;
    _cleanup_(freep) float *z = NULL, *rows = NULL;
    int r;

    if (v->o.curve == CURVE_MEASURED && n_coords > 0) {
        z = malloc((n / step + 1) * n_coords * sizeof(*z));
        rows = malloc((n / step + 1) * d * sizeof(*rows));
        if (!z || !rows)
            return -ENOMEM;

        for (size_t t = 0; t < n; t += step)
            memcpy(rows + n_used++ * d, x + t * d, d * sizeof(*rows));
        r = transform_apply(&h->t, mean, rows, n_used, z);
        if (r < 0)
            return r;
    }

    for (uint32_t b = 0; b < h->t.n_bands; b++) {
        double factor = h->weight * h->t.scale[b] * h->t.scale[b];

        curve_band(&v->model, z ? z + b * BAND_COORDS : NULL, n_used, band_coords(&h->t, b), n_coords,
                   h->curve[b]);
        for (unsigned bits = 0; bits <= TABLE_BITS_MAX; bits++) {
            h->curve[b][bits] *= factor;
            if (!isfinite(h->curve[b][bits]))
                return -EDOM;
        }
    }

    return 0;
}

int solve_fit_head(struct solver *v, uint32_t layer, uint32_t head, enum side side, const double *mean,
                   const double *S, const float *x, size_t n, struct errmsg *e)
{
    size_t d = v->g->d;
    uint32_t hs = head_side_index(v->g, layer, head, side);
    struct head *h = &v->heads[hs];
    _cleanup_(freep) double *M = malloc(d * d * sizeof(*M));
    int r;

    if (!M)
        return solver_fail(layer, head, side, -ENOMEM, e);

    r = metric_matrix(v->s, v->o.metric, v->o.temper, layer, head, side, S, M);
    if (r < 0)
        return solver_fail(layer, head, side, r, e);

    r = transform_fit(&h->t, S, M, splitmix64_seed(v->o.seed, hs));
    if (r < 0)
        return solver_fail(layer, head, side, r, e);

    r = solve_fit_curves(v, h, mean, x, n);
    return r < 0 ? solver_fail(layer, head, side, r, e) : 0;
}

int solve_fit_side(struct solver *v, enum side side, struct errmsg *e)
{
    size_t dd = (size_t) v->g->d * v->g->d;
    _cleanup_(freep) double *S = malloc(dd * sizeof(*S));

    if (!S)
        return fail(e, -ENOMEM, "out of memory for solving");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        if (!solver_codes(v, layer, side))
            continue;

        solver_progress(v, side == SIDE_K ? "key transforms" : "value transforms",
                        (double) layer / v->g->n_layers);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            uint32_t hs = head_side_index(v->g, layer, head, side);
            int r;

            solver_covariance(v, hs, S);
            r = solve_fit_head(v, layer, head, side, v->heads[hs].mean, S, stats_sample_rows(v->s, hs),
                               v->s->n_held, e);
            if (r < 0)
                return r;
        }
    }

    return 0;
}
