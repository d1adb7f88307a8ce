/*
 * What a table is expected to cost on a source that it was not fitted to: the coordinates of each source in
 * bases, means and predictions without it (solve_view.h), quantised with the bits and levels of the table.
 * And what it costs on the source that options leave out.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>

#include "alloc/linalg.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

/* z := z - level(z), or z where nothing is stored. */
static void solve_unseen_quantise(const struct solver *v, uint32_t hs, float *z)
{
    const struct head *h = &v->heads[hs];
    size_t r = h->t.n_coords;

    for (uint32_t band = 0; band < h->t.n_bands; band++) {
        unsigned b = h->bits[band];
        const struct levels *l = &v->levels[hs % 2][b];

        for (size_t t = 0; b > 0 && t < v->n; t++)
            for (uint32_t c = 0; c < band_coords(&h->t, band); c++) {
                float *at = &z[t * r + band * BAND_COORDS + c];

                *at -= (float) level_z(l, quantise_fast(l, b, *at));
            }
    }
}

/* Distortion and plain squared error of the errors @z: e'Me = sum over bands of scale^2 |e_z|^2, e = dec'
 * e_z. */
static int solve_unseen_add_errors(const struct solver *v, uint32_t hs, const float *z,
                                   double *ret_distortion, double *ret_square)
{
    const struct head *h = &v->heads[hs];
    size_t d = v->g->d, r = h->t.n_coords;
    _cleanup_(freep) float *dec = malloc((r * d + 1) * sizeof(*dec));
    _cleanup_(freep) float *e = malloc((v->n * d + 1) * sizeof(*e));

    *ret_distortion = *ret_square = 0;
    if (!dec || !e)
        return -ENOMEM;
    if (r == 0)
        return 0;

    for (size_t t = 0; t < v->n; t++)
        for (size_t i = 0; i < r; i++) {
            double scaled = h->t.scale[i / BAND_COORDS] * (double) z[t * r + i];

            *ret_distortion += h->weight * scaled * scaled / (double) v->n;
        }
    for (size_t i = 0; i < r * d; i++)
        dec[i] = (float) h->t.dec[i];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) v->n, (int) d, (int) r, 1.0f, z, (int) r,
                dec, (int) d, 0.0f, e, (int) d);
    for (size_t i = 0; i < v->n * d; i++)
        *ret_square += (double) e[i] * (double) e[i] / (double) v->n;
    return 0;
}

/* One head-side. @w, @M [d, d] are scratch. @ret_signal: mean of |x - mean|^2. */
static int solve_unseen_head(struct solver *v, uint32_t layer, uint32_t head, enum side side,
                             struct solve_view *w, double *M, double *ret_distortion, double *ret_square,
                             double *ret_signal)
{
    uint32_t hs = head_side_index(v->g, layer, head, side);
    const struct transform *t = &v->heads[hs].t;
    size_t d = v->g->d;
    _cleanup_(freep) float *z = malloc((v->n * t->n_coords + 1) * sizeof(*z));
    int r = z ? solve_view_plain(v, hs, w) : -ENOMEM; /* leaves the mean of V as it would be without P */

    *ret_signal = 0;
    for (uint32_t i = 0; r == 0 && i < w->n_sources; i++)
        *ret_signal += v->share[i] * linalg_trace(d, w->left + i * d * d);
    if (r == 0 && side == SIDE_V && v->o.v_from != PREDICT_NONE)
        r = solve_predict_head(v, layer, head, w); /* gives the same P and mean: its inputs are unchanged */
    if (r == 0)
        r = solver_metric(v, hs, w->S, M);
    if (r == 0)
        r = solve_view_coordinates(v, w, M, splitmix64_seed(v->o.seed, hs), t, z);
    if (r != 0)
        return r;

    solve_unseen_quantise(v, hs, z);
    return solve_unseen_add_errors(v, hs, z, ret_distortion, ret_square);
}

int solve_expect_unseen(struct solver *v, struct solve_report *ret, struct errmsg *e)
{
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    _cleanup_(freep) double *M = malloc((size_t) v->g->d * v->g->d * sizeof(*M));

    if (!v->leaves_out)
        return 0;
    if (!M || solve_view_init(v, &w) < 0)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        solver_progress(v, "expecting other texts", (double) layer / v->g->n_layers);
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            double square = 0, signal = 0;

            for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
                double of_head[3];
                int r = solve_unseen_head(v, layer, head, (enum side) side, &w, M, &of_head[0], &of_head[1],
                                          &of_head[2]);

                if (r != 0)
                    return solver_fail(layer, head, (enum side) side, r, e);

                ret->unseen.distortion += of_head[0];
                square += of_head[1];
                signal += of_head[2];
            }
            ret->unseen.error[side] += signal > 0 ? square / signal / v->g->n_layers : 0;
        }
    }

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
