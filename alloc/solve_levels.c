/*
 * Levels fitted to the pooled unit-variance coordinates of a side, one set per width (DESIGN 3.3). Runs after
 * the allocation, since the distribution at a width depends on the coordinates that have it.
 */
#include <errno.h>
#include <stdlib.h>

#include "alloc/levels_fit.h"
#include "alloc/solve_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

/* Numbers pooled per width: 2^20 are 4096 samples for each of 256 levels. */
#define POOL_NUMBERS ((size_t) 1 << 20)

struct level_pool {
    float *z[TABLE_BITS_MAX + 1];
    size_t n[TABLE_BITS_MAX + 1], room[TABLE_BITS_MAX + 1];
    size_t step[TABLE_BITS_MAX + 1]; /* every step-th token is taken */
};

static void level_pool_deinit(struct level_pool *p)
{
    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++)
        free(p->z[b]);
}

static int level_pool_init(struct level_pool *p, const struct solver *v, enum side side)
{
    size_t coords[TABLE_BITS_MAX + 1] = {0};

    for (uint32_t hs = (uint32_t) side; hs < v->n_heads; hs += 2)
        for (uint32_t b = 0; b < v->heads[hs].t.n_bands; b++)
            coords[v->heads[hs].bits[b]] += band_coords(&v->heads[hs].t, b);
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
        p->step[b] = (coords[b] * v->n + POOL_NUMBERS - 1) / POOL_NUMBERS;
        if (coords[b] == 0)
            continue;

        p->room[b] = coords[b] * (v->n / p->step[b] + 1);
        p->z[b] = malloc(p->room[b] * sizeof(float));
        if (!p->z[b])
            return -ENOMEM;
    }

    return 0;
}

static void level_pool_add(struct level_pool *p, const struct head *h, const float *z, size_t n)
{
    size_t r = h->t.n_coords;

    for (uint32_t band = 0; band < h->t.n_bands; band++) {
        unsigned b = h->bits[band];

        if (b == 0)
            continue;
        for (size_t t = 0; t < n; t += p->step[b])
            for (uint32_t c = 0; c < band_coords(&h->t, band); c++)
                p->z[b][p->n[b]++] = z[t * r + band * BAND_COORDS + c];
    }
}

/* The coordinates of the view of one head-side. */
static int solve_levels_add_head(struct solver *v, uint32_t layer, uint32_t head, enum side side,
                                 struct level_pool *p, struct solve_view *w)
{
    uint32_t hs = head_side_index(v->g, layer, head, side);
    struct head *h = &v->heads[hs];
    size_t dd = (size_t) v->g->d * v->g->d;
    _cleanup_(freep) float *z = malloc((v->n * h->t.n_coords + 1) * sizeof(*z));
    _cleanup_(freep) double *M = malloc(dd * sizeof(*M));
    int r;

    if (!z || !M)
        return -ENOMEM;

    /* gives the same P: its inputs are unchanged */
    r = side == SIDE_V && v->o.v_from != PREDICT_NONE ? solve_predict_head(v, layer, head, w)
                                                      : solve_view_plain(v, hs, w);
    if (r == 0)
        r = solver_metric(v, hs, w->S, M);
    if (r == 0)
        r = solve_view_coordinates(v, w, M, splitmix64_seed(v->o.seed, hs), &h->t, z);
    if (r == 0)
        level_pool_add(p, h, z, v->n);
    return r;
}

int solve_fit_levels(struct solver *v, enum side side, struct errmsg *e)
{
    _cleanup_(level_pool_deinit) struct level_pool p = {0};
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    int r = solve_view_init(v, &w) == 0 ? level_pool_init(&p, v, side) : -ENOMEM;

    if (r < 0)
        return fail(e, r, "out of memory for fitting levels");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        solver_progress(v, side == SIDE_K ? "key levels" : "value levels", (double) layer / v->g->n_layers);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            r = solve_levels_add_head(v, layer, head, side, &p, &w);
            if (r < 0)
                return solver_fail(layer, head, side, r, e);
        }
    }

    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
        if (p.n[b] == 0)
            continue;

        r = levels_fit(p.z[b], p.n[b], b, &v->levels[side][b]);
        if (r < 0)
            return fail(e, r, "out of memory for fitting levels");
    }

    return 0;
}
