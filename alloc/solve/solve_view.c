/* See solve_view.h. */
#include "alloc/solve/solve_view.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"

int solve_view_init(struct solver *v, uint32_t head_side, struct solve_view *w)
{
    size_t d = v->g->d, dd = d * d;

    *w = (struct solve_view){.v = v, .hs = head_side, .d = d, .n_sources = v->leaves_out ? v->n_sources : 0};
    w->S = malloc((1 + 2 * (size_t) w->n_sources) * dd * sizeof(*w->S));
    w->mean = calloc(((size_t) w->n_sources + 1) * d, sizeof(*w->mean));
    w->bases = calloc((size_t) w->n_sources + 1, sizeof(*w->bases));
    if (!w->S || !w->mean || !w->bases)
        return -ENOMEM;

    for (uint32_t i = 0; i < w->n_sources; i++)
        if (transform_init(&w->bases[i], v->g->d) < 0)
            return -ENOMEM;
    w->left = w->S + dd;
    w->rest = w->left + w->n_sources * dd;
    return 0;
}

void solve_view_deinit(struct solve_view *w)
{
    for (uint32_t i = 0; w->bases && i < w->n_sources; i++)
        transform_deinit(&w->bases[i]);
    free(w->bases);
    solve_keys_deinit(&w->keys);
    free(w->codes);
    free(w->P);
    free(w->mean);
    free(w->S);
    *w = (struct solve_view){.d = 0};
}

/* left := scatter / n + (mean - other)(mean - other)' of one source. */
static void solve_view_set_left(const struct stats_domain *own, size_t head_side, size_t d,
                                const double *other, double *ret)
{
    const double *mean = own->mean + head_side * d, *scatter = own->scatter + head_side * d * d;

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            ret[i * d + j] =
                scatter[i * d + j] / (double) own->n_tokens + (mean[i] - other[i]) * (mean[j] - other[j]);
}

int solve_view_plain(struct solve_view *w)
{
    const struct solver *v = w->v;
    size_t d = w->d, dd = d * d;
    double *own = v->heads[w->hs].mean;

    solver_moments(v, w->hs, v->mask, own, w->S);
    memcpy(w->mean, own, d * sizeof(*own));
    for (uint32_t i = 0; i < w->n_sources; i++) {
        double *mean = w->mean + i * d;

        solver_moments(v, w->hs, v->mask & ~(1u << v->sources[i]), mean, w->rest + i * dd);
        solve_view_set_left(&v->s->domains[v->sources[i]], w->hs, d, mean, w->left + i * dd);
    }

    return 0;
}

int solve_view_read(struct solve_view *w, const struct solve_rows *r, float *ret_u)
{
    size_t d = w->d, m = w->keys.m, set = w->n_sources > 0 ? r->source : 0;
    int err;

    solve_rows_read(w->v, w->hs, r, w->mean + set * d, ret_u);
    if (!w->P)
        return 0;

    err = solve_keys_read(&w->keys, r, w->codes, m);
    if (err == 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) r->n, (int) d, (int) m, -1.0f, w->codes,
                    (int) m, w->P + set * d * m, (int) m, 1.0f, ret_u, (int) d);
    return err;
}

/* Adds the mean square of each band of @t, in units before scaling, under second moments @E; bands that
 * @basis lacks are seen by @t itself. */
static void solve_view_add_energy(const struct transform *t, const struct transform *basis, const double *E,
                                  double share, double *sum)
{
    size_t d = t->d;

    for (uint32_t b = 0; b < t->n_bands; b++) {
        const struct transform *in = b < basis->n_bands ? basis : t;
        const double *enc = in->enc + (size_t) b * BAND_COORDS * d;
        double energy = 0;

        for (uint32_t c = 0; c < band_coords(in, b); c++)
            for (size_t i = 0; i < d; i++) {
                double row = 0;

                for (size_t j = 0; j < d; j++)
                    row += E[i * d + j] * enc[c * d + j];
                energy += row * enc[c * d + i];
            }
        sum[b] += share * energy / band_coords(in, b) * in->scale[b] * in->scale[b];
    }
}

int solve_view_fit_bases(struct solve_view *w)
{
    const struct head_metric *metric = NULL;
    int r = w->n_sources > 0 ? solver_head_metric(w->v, w->hs, &metric) : 0;

    for (uint32_t i = 0; r == 0 && i < w->n_sources; i++)
        r = transform_fit_roots(&w->bases[i], w->rest + i * w->d * w->d, &metric->roots,
                                splitmix64_seed(w->v->o.seed, w->hs));
    return r;
}

int solve_view_fit(struct solve_view *w)
{
    const struct solver *v = w->v;
    struct transform *t = &v->heads[w->hs].t;
    double energy[TABLE_HALF_TILES_MAX] = {0};
    const struct head_metric *metric = NULL;
    int r = solver_head_metric(v, w->hs, &metric);

    if (r == 0)
        r = transform_fit_roots(t, w->S, &metric->roots, splitmix64_seed(v->o.seed, w->hs));
    if (r < 0 || w->n_sources == 0)
        return r;

    r = solve_view_fit_bases(w);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < w->n_sources; i++)
        solve_view_add_energy(t, &w->bases[i], w->left + i * w->d * w->d, v->share[i], energy);
    for (uint32_t b = 0; b < t->n_bands; b++)
        energy[b] = sqrt(energy[b]);
    transform_rescale(t, energy);
    return 0;
}

/* The encoders of all sources in binary32, in units of the scales of @t: [max(n_sources, 1), n_coords, d];
 * coordinates that a basis lacks are 0. */
static void solve_view_encoders(struct solve_view *w, const struct transform *t, float *ret)
{
    size_t d = w->d;

    for (uint32_t i = 0; i < w->n_sources || i == 0; i++) {
        const struct transform *in = w->n_sources > 0 ? &w->bases[i] : t;
        uint32_t n = in->n_coords < t->n_coords ? in->n_coords : t->n_coords;

        if (w->n_sources > 0)
            transform_rescale(&w->bases[i], t->scale);
        for (size_t k = 0; k < n * d; k++)
            ret[k] = (float) in->enc[k];
        memset(ret + n * d, 0, (t->n_coords - n) * d * sizeof(*ret));
        ret += t->n_coords * d;
    }
}

int solve_view_coordinates(struct solve_view *w, size_t step, float *ret_z)
{
    const struct transform *t = &w->v->heads[w->hs].t;
    size_t d = w->d, r = t->n_coords, n_sets = w->n_sources > 0 ? w->n_sources : 1, n_done = 0;
    _cleanup_(freep) float *enc = malloc((n_sets * r * d + SOLVE_BLOCK * d) * sizeof(*enc));
    struct solve_rows rows = {.n = 0};
    bool finite = true;
    float *u;

    if (!enc)
        return -ENOMEM;
    if (r == 0)
        return 0;

    u = enc + n_sets * r * d;
    solve_view_encoders(w, t, enc);
    while (solve_rows_next(w->v, step, &rows)) {
        size_t set = w->n_sources > 0 ? rows.source : 0;
        int err = solve_view_read(w, &rows, u);

        if (err < 0)
            return err;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) rows.n, (int) r, (int) d, 1.0f, u, (int) d,
                    enc + set * r * d, (int) d, 0.0f, ret_z + n_done * r, (int) r);
        n_done += rows.n;
    }

    for (size_t i = 0; i < n_done * r; i++)
        finite &= fabsf(ret_z[i]) < INFINITY; /* the scale of a band may exceed binary32 */
    return finite ? 0 : -EDOM;
}
