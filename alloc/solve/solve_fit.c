/* Transform and curve of a head-side, from covariances and vectors
 * (DESIGN 3.2, 3.4). See solve_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/solve/solve_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Tokens that a measured curve quantises: 32768 numbers per band, which gives a distortion to about 1 %. */
#define CURVE_TOKENS 4096

/* The head's weighted curves, from every k-th token, so that all parts of the text count. */
int solve_fit_curves(struct solve_view *w)
{
    struct solver *v = w->v;
    struct head *h = &v->heads[w->hs];
    size_t step = v->n > 0 ? solve_rows_count(v->n, CURVE_TOKENS) : 1, n = 0, n_coords = h->t.n_coords;
    _cleanup_(freep) float *z = NULL;
    int r = 0;

    if (v->o.curve == CURVE_MEASURED && n_coords > 0) {
        n = solve_rows_count(v->n, step);
        z = malloc((n * n_coords + 1) * sizeof(*z));
        if (!z)
            return -ENOMEM;

        r = solve_view_coordinates(w, step, z);
    }

    for (uint32_t b = 0; r == 0 && b < h->t.n_bands; b++) {
        double factor = h->weight * h->t.scale[b] * h->t.scale[b];

        r = curve_band(&v->model, z ? z + b * BAND_COORDS : NULL, n, band_coords(&h->t, b), n_coords,
                       h->curve[b]);
        for (unsigned bits = 0; r == 0 && bits <= TABLE_BITS_MAX; bits++) {
            h->curve[b][bits] *= factor;
            if (!isfinite(h->curve[b][bits]))
                r = -EDOM;
        }
    }

    return r;
}

static int solve_fit_plain(struct solver *v, uint32_t head_side, void *ctx)
{
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    int r = solve_view_init(v, head_side, &w);

    (void) ctx;
    if (r == 0)
        r = solve_view_plain(&w);
    if (r == 0)
        r = solve_view_fit(&w);
    return r == 0 ? solve_fit_curves(&w) : r;
}

int solve_fit_sides(struct solver *v, unsigned sides, struct errmsg *e)
{
    return solver_each_side(v, "transforms", sides, solve_fit_plain, NULL, e);
}
