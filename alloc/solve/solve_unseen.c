/*
 * What a table is expected to cost on a source that it was not fitted to: the coordinates of each source in
 * bases, means and predictions without it (solve_view.h), quantised with the bits and levels of the table.
 * And what it costs on the source that options leave out.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_rows.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/levels.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* What one side costs, by head-side: [n_heads]. */
struct unseen {
    double *distortion;
    double *square;            /* mean of |e|^2 */
    double *signal;            /* mean of |x - mean|^2 */
    double *saturated, *coded; /* coordinates of all tokens */
};

/* z [n, n_coords] -= factor * level, at most SOLVE_BLOCK rows of a band. */
static void solve_unseen_subtract(const struct levels *l, unsigned b, double factor, size_t n,
                                  size_t n_coords, float *z, size_t stride)
{
    float decoded[SOLVE_BLOCK * BAND_COORDS];

    for (size_t t = 0; t < n; t++)
        memcpy(decoded + t * BAND_COORDS, z + t * stride, n_coords * sizeof(*z));
    curve_quantise_levels(l, b, decoded, n, n_coords, BAND_COORDS);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < n_coords; c++)
            z[t * stride + c] -= (float) (factor * (double) decoded[t * BAND_COORDS + c]);
}

/* z [n, n_coords] := z - what is decoded from its code, or z where nothing is stored. Counts coordinates. */
static void solve_unseen_quantise(const struct solver *v, uint32_t hs, float *z, size_t n,
                                  const struct unseen *u)
{
    const struct head *h = &v->heads[hs];
    size_t r = h->t.n_coords;

    for (uint32_t band = 0; band < h->t.n_bands; band++) {
        unsigned b = h->bits[band];
        const struct levels *l = &v->levels[hs % 2][b];
        double factor = solve_inverse_factor(v, (enum side)(hs % 2), b);

        if (b > 0) {
            u->coded[hs] += (double) n * band_coords(&h->t, band);
            u->saturated[hs] +=
                (double) levels_count_saturated(l, b, z + band * BAND_COORDS, n, band_coords(&h->t, band), r);
        }

        for (size_t t = 0; b > 0 && t < n; t += SOLVE_BLOCK)
            solve_unseen_subtract(l, b, factor, n - t < SOLVE_BLOCK ? n - t : SOLVE_BLOCK,
                                  band_coords(&h->t, band), z + t * r + band * BAND_COORDS, r);
    }
}

/* Distortion and plain squared error of the errors @z [n, n_coords], sums over rows: e'Me = sum over bands of
 * scale^2 |e_z|^2, e = dec' e_z. */
static int solve_unseen_sum_errors(const struct solver *v, uint32_t hs, const float *z, size_t n,
                                   double *ret_distortion, double *ret_square)
{
    const struct head *h = &v->heads[hs];
    size_t d = v->g->d, r = h->t.n_coords;
    _cleanup_(freep) float *dec = malloc((r + SOLVE_BLOCK) * d * sizeof(*dec));
    float *e;

    if (!dec)
        return -ENOMEM;
    if (r == 0)
        return 0;

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < r; i++) {
            double scaled = h->t.scale[i / BAND_COORDS] * (double) z[t * r + i];

            *ret_distortion += scaled * scaled;
        }
    e = dec + r * d;
    for (size_t i = 0; i < r * d; i++)
        dec[i] = (float) h->t.dec[i];
    for (size_t t = 0; t < n; t += SOLVE_BLOCK) {
        size_t rows = n - t < SOLVE_BLOCK ? n - t : SOLVE_BLOCK;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) rows, (int) d, (int) r, 1.0f, z + t * r,
                    (int) r, dec, (int) d, 0.0f, e, (int) d);
        for (size_t i = 0; i < rows * d; i++)
            *ret_square += (double) e[i] * (double) e[i];
    }
    return 0;
}

static int solve_unseen_head(struct solver *v, uint32_t hs, void *ctx)
{
    struct unseen *u = ctx;
    size_t d = v->g->d;
    double distortion = 0, square = 0, n = (double) v->n;
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    _cleanup_(freep) float *z = malloc((v->n * v->heads[hs].t.n_coords + 1) * sizeof(*z));
    int r = z ? solve_view_init(v, hs, &w) : -ENOMEM;

    if (r == 0)
        r = solve_view_plain(&w); /* leaves the mean of V as it would be without P */
    for (uint32_t i = 0; r == 0 && i < w.n_sources; i++)
        u->signal[hs] += v->share[i] * linalg_trace(d, w.left + i * d * d);
    if (r == 0)
        r = solve_predict_view(&w, PREDICT_FINAL); /* gives the same P and mean: its inputs are unchanged */
    if (r == 0)
        r = solve_view_fit_bases(&w);
    if (r == 0)
        r = solve_view_coordinates(&w, 1, z);
    if (r != 0)
        return r;

    solve_unseen_quantise(v, hs, z, v->n, u);
    r = solve_unseen_sum_errors(v, hs, z, v->n, &distortion, &square);
    u->distortion[hs] = v->heads[hs].weight * distortion / n;
    u->square[hs] = square / n;
    return r;
}

static void solve_unseen_add(const struct solver *v, const struct unseen *u, struct solve_report *ret)
{
    uint32_t n_hs = 2 * v->g->n_kv_heads;

    for (uint32_t side = SIDE_K; side <= SIDE_V; side++) {
        double saturated = 0, coded = 0;

        for (uint32_t hs = side; hs < v->n_heads; hs += 2) {
            saturated += u->saturated[hs];
            coded += u->coded[hs];
        }
        ret->unseen.saturated[side] = coded > 0 ? saturated / coded : 0;
    }
    for (uint32_t layer = 0; layer < v->g->n_layers; layer++)
        for (uint32_t side = SIDE_K; side <= SIDE_V; side++) {
            double square = 0, signal = 0;

            for (uint32_t hs = layer * n_hs + side; hs < (layer + 1) * n_hs; hs += 2) {
                ret->unseen.distortion += u->distortion[hs];
                square += u->square[hs];
                signal += u->signal[hs];
            }
            ret->unseen.error[side] += signal > 0 ? square / signal / v->g->n_layers : 0;
        }
}

int solve_expect_unseen(struct solver *v, struct solve_report *ret, struct errmsg *e)
{
    _cleanup_(freep) double *sums = NULL;
    struct unseen u;
    int r = 0;

    if (!v->leaves_out)
        return 0;

    sums = calloc(5 * (size_t) v->n_heads + 1, sizeof(*sums));
    if (!sums)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    u = (struct unseen){sums, sums + v->n_heads, sums + 2 * (size_t) v->n_heads,
                        sums + 3 * (size_t) v->n_heads, sums + 4 * (size_t) v->n_heads};

    /* K before V, which reads K's codec while a view of K writes its mean again */
    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++)
        r = solver_each_side(v, "expecting other texts", 1u << side, solve_unseen_head, &u, e);
    if (r < 0)
        return r;

    solve_unseen_add(v, &u, ret);
    ret->unseen.expected = true;
    return 0;
}

int solve_measure_left_out(const struct solver *v, const void *bytes, size_t n_bytes,
                           struct solve_report *ret, struct errmsg *e)
{
    _cleanup_(solver_deinit) struct solver one = {0};
    struct solve_report report = {0};
    int r;

    if (v->o.without == 0)
        return 0;

    r = solver_init_with(&one, v->s, &v->o, 1u << (v->o.without - 1), e);
    if (r == 0)
        r = solve_measure(&one, bytes, n_bytes, &report, e);
    if (r == 0 && report.measured)
        ret->left_out_distortion = report.distortion;
    return r;
}
