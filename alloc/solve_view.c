/* See solve_view.h. */
#include "alloc/solve_view.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats_internal.h"
#include "base/cleanup.h"

int solve_view_init(const struct solver *v, struct solve_view *w)
{
    size_t d = v->g->d, dd = d * d;

    *w = (struct solve_view){.n = v->n, .d = d, .n_sources = v->leaves_out ? v->n_sources : 0};
    w->u = malloc((w->n * d + 1) * sizeof(*w->u));
    w->S = malloc((1 + 2 * (size_t) w->n_sources) * dd * sizeof(*w->S));
    if (!w->u || !w->S)
        return -ENOMEM;

    w->left = w->S + dd;
    w->rest = w->left + w->n_sources * dd;
    return 0;
}

void solve_view_deinit(struct solve_view *w)
{
    free(w->u);
    free(w->S);
    *w = (struct solve_view){.n = 0};
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

int solve_view_plain(struct solver *v, uint32_t head_side, struct solve_view *w)
{
    size_t d = w->d, dd = d * d;
    _cleanup_(freep) float *x = solver_samples(v, head_side);
    double mean[STATS_DOMAINS_MAX + 1][GEOMETRY_DIM_MAX], *own = v->heads[head_side].mean;

    if (!x)
        return -ENOMEM;

    solver_moments(v, head_side, v->mask, own, w->S);
    for (uint32_t i = 0; i < w->n_sources; i++) {
        solver_moments(v, head_side, v->mask & ~(1u << v->sources[i]), mean[i], w->rest + i * dd);
        solve_view_set_left(&v->s->domains[v->sources[i]], head_side, d, mean[i], w->left + i * dd);
    }

    for (size_t t = 0; t < w->n; t++) {
        const double *from = w->n_sources > 0 ? mean[v->source_of[t]] : own;

        for (size_t i = 0; i < d; i++)
            w->u[t * d + i] = (float) ((double) x[t * d + i] - from[i]);
    }

    return 0;
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

int solve_view_fit(const struct solver *v, const struct solve_view *w, const double *M, uint64_t seed,
                   struct transform *t)
{
    _cleanup_(transform_deinit) struct transform basis = {.d = 0};
    double energy[TABLE_HALF_TILES_MAX] = {0};
    size_t dd = w->d * w->d;
    int r = transform_fit(t, w->S, M, seed);

    if (r < 0 || w->n_sources == 0)
        return r;

    r = transform_init(&basis, t->d);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < w->n_sources; i++) {
        r = transform_fit(&basis, w->rest + i * dd, M, seed);
        if (r < 0)
            return r;

        solve_view_add_energy(t, &basis, w->left + i * dd, v->share[i], energy);
    }

    for (uint32_t b = 0; b < t->n_bands; b++)
        energy[b] = sqrt(energy[b]);
    transform_rescale(t, energy);
    return 0;
}

/* Rows of one source in the basis without it. */
static int solve_view_project(const struct solver *v, const struct solve_view *w, uint32_t source,
                              const struct transform *in, size_t r, float *ret_z)
{
    const double zero[GEOMETRY_DIM_MAX] = {0};
    size_t d = w->d, n = 0, m = in->n_coords < r ? in->n_coords : r;
    _cleanup_(freep) float *rows = malloc((w->n * d + 1) * sizeof(*rows));
    _cleanup_(freep) float *z = malloc((w->n * in->n_coords + 1) * sizeof(*z));
    int err;

    if (!rows || !z)
        return -ENOMEM;

    for (size_t t = 0; t < w->n; t++)
        if (v->source_of[t] == source)
            memcpy(rows + n++ * d, w->u + t * d, d * sizeof(*rows));
    err = transform_apply(in, zero, rows, n, z);
    for (size_t t = 0, at = 0; err == 0 && t < w->n; t++)
        if (v->source_of[t] == source) {
            memcpy(ret_z + t * r, z + at++ * in->n_coords, m * sizeof(*z));
            memset(ret_z + t * r + m, 0, (r - m) * sizeof(*z));
        }
    return err;
}

int solve_view_coordinates(const struct solver *v, const struct solve_view *w, const double *M, uint64_t seed,
                           const struct transform *t, float *ret_z)
{
    _cleanup_(transform_deinit) struct transform basis = {.d = 0};
    const double zero[GEOMETRY_DIM_MAX] = {0};
    int r;

    if (w->n_sources == 0)
        return transform_apply(t, zero, w->u, w->n, ret_z);

    r = transform_init(&basis, t->d);
    for (uint32_t i = 0; r == 0 && i < w->n_sources; i++) {
        r = transform_fit(&basis, w->rest + i * w->d * w->d, M, seed);
        if (r < 0)
            break;

        transform_rescale(&basis, t->scale);
        r = solve_view_project(v, w, i, &basis, t->n_coords, ret_z);
    }
    return r;
}
