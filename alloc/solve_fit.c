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
static int solve_fit_curves(struct solver *v, struct head *h, const struct solve_view *w, const double *M,
                            uint64_t seed)
{
    size_t n = w->n, step = (n + CURVE_TOKENS - 1) / CURVE_TOKENS, n_used = 0, n_coords = h->t.n_coords;
    _cleanup_(freep) float *z = NULL;
    int r;

    if (v->o.curve == CURVE_MEASURED && n_coords > 0) {
        z = malloc((n * n_coords + 1) * sizeof(*z));
        if (!z)
            return -ENOMEM;

        r = solve_view_coordinates(v, w, M, seed, &h->t, z);
        if (r < 0)
            return r;
        for (size_t t = 0; t < n; t += step, n_used++)
            memmove(z + n_used * n_coords, z + t * n_coords, n_coords * sizeof(*z));
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

int solve_fit_head(struct solver *v, uint32_t head_side, const struct solve_view *w)
{
    size_t d = v->g->d;
    struct head *h = &v->heads[head_side];
    _cleanup_(freep) double *M = malloc(d * d * sizeof(*M));
    uint64_t seed = splitmix64_seed(v->o.seed, head_side);
    int r = M ? solver_metric(v, head_side, w->S, M) : -ENOMEM;

    if (r < 0)
        return r;

    r = solve_view_fit(v, w, M, seed, &h->t);
    return r < 0 ? r : solve_fit_curves(v, h, w, M, seed);
}

int solve_fit_side(struct solver *v, enum side side, struct errmsg *e)
{
    _cleanup_(solve_view_deinit) struct solve_view w = {0};

    if (solve_view_init(v, &w) < 0)
        return fail(e, -ENOMEM, "out of memory for solving");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        if (!solver_codes(v, layer, side))
            continue;

        solver_progress(v, side == SIDE_K ? "key transforms" : "value transforms",
                        (double) layer / v->g->n_layers);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            uint32_t hs = head_side_index(v->g, layer, head, side);
            int r = solve_view_plain(v, hs, &w);

            if (r == 0)
                r = solve_fit_head(v, hs, &w);
            if (r < 0)
                return solver_fail(layer, head, side, r, e);
        }
    }

    return 0;
}
