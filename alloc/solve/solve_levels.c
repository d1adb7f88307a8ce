/*
 * The last refit of values, and levels fitted to the pooled unit-variance coordinates of a side, one set per
 * width (DESIGN 3.3). Runs after the allocation, since the distribution at a width depends on the coordinates
 * that have it. Every head-side has its own place in the pool, so that its contents do not depend on the
 * order of threads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_fit.h"
#include "alloc/quantiser/trellis_fit.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/table/levels.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/threads.h"

/* Numbers pooled per width, at most: at least half as many are 4096 samples for each of 256 levels, if
 * there are so many. */
#define POOL_NUMBERS ((size_t) 1 << 22)

struct level_pool {
    float *z[TABLE_BITS_MAX + 1];
    size_t step[TABLE_BITS_MAX + 1];     /* every step-th row is taken; powers of two */
    size_t (*first)[TABLE_BITS_MAX + 1]; /* [n_heads] where a head-side's numbers begin */
    size_t (*n)[TABLE_BITS_MAX + 1];     /* [n_heads] how many there are */
};

static void level_pool_deinit(struct level_pool *p)
{
    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++)
        free(p->z[b]);
    free(p->first);
    free(p->n);
}

static int level_pool_init(struct level_pool *p, const struct solver *v, enum side side)
{
    size_t bands[TABLE_BITS_MAX + 1] = {0};

    p->first = calloc((size_t) v->n_heads + 1, sizeof(*p->first));
    p->n = calloc((size_t) v->n_heads + 1, sizeof(*p->n));
    if (!p->first || !p->n)
        return -ENOMEM;

    for (uint32_t hs = (uint32_t) side; hs < v->n_heads; hs += 2)
        for (uint32_t i = 0; i < TABLE_HALF_TILES_MAX; i++)
            bands[v->heads[hs].bits[i]]++;
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
        size_t room = 0;

        p->step[b] = 1;
        while (bands[b] * BAND_COORDS * solve_rows_count(v->n, p->step[b]) > POOL_NUMBERS &&
               p->step[b] < v->n)
            p->step[b] *= 2;
        for (uint32_t hs = (uint32_t) side; hs < v->n_heads; hs += 2) {
            p->first[hs][b] = room;
            for (uint32_t i = 0; i < TABLE_HALF_TILES_MAX; i++)
                room += v->heads[hs].bits[i] == b ? BAND_COORDS * solve_rows_count(v->n, p->step[b]) : 0;
        }

        p->z[b] = malloc((room + 1) * sizeof(float));
        if (!p->z[b])
            return -ENOMEM;
    }

    return 0;
}

/* The smallest step of the widths of a head-side; 0: no band has bits. */
static size_t level_pool_step(const struct level_pool *p, const struct head *h)
{
    size_t least = 0;

    for (uint32_t band = 0; band < h->t.n_bands; band++) {
        size_t step = h->bits[band] > 0 ? p->step[h->bits[band]] : 0;

        if (step > 0 && (least == 0 || step < least))
            least = step;
    }
    return least;
}

/* @z [n, n_coords]: every @step-th row. */
static void level_pool_add(struct level_pool *p, const struct head *h, uint32_t hs, const float *z, size_t n,
                           size_t step)
{
    size_t r = h->t.n_coords;

    for (uint32_t band = 0; band < h->t.n_bands; band++) {
        unsigned b = h->bits[band];

        if (b == 0)
            continue;
        for (size_t t = 0; t < n; t += p->step[b] / step)
            for (uint32_t c = 0; c < band_coords(&h->t, band); c++)
                p->z[b][p->first[hs][b] + p->n[hs][b]++] = z[t * r + band * BAND_COORDS + c];
    }
}

/* The coordinates of the view of one head-side. */
static int solve_levels_add_view(struct solve_view *w, struct level_pool *p)
{
    const struct head *h = &w->v->heads[w->hs];
    size_t step = level_pool_step(p, h), n = step > 0 ? solve_rows_count(w->v->n, step) : 0;
    _cleanup_(freep) float *z = malloc((n * h->t.n_coords + 1) * sizeof(*z));
    int r;

    if (!z)
        return -ENOMEM;
    if (n == 0)
        return 0;

    r = solve_view_coordinates(w, step, z);
    if (r == 0)
        level_pool_add(p, h, w->hs, z, n, step);
    return r;
}

/* @ctx: the pool, or NULL. */
static int solve_levels_finish(struct solver *v, uint32_t hs, void *ctx)
{
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    int r = solve_view_init(v, hs, &w);

    if (r == 0)
        r = solve_predict_view(&w, PREDICT_FINAL);
    if (r == 0 && hs % 2 == SIDE_V && v->o.v_from != PREDICT_NONE)
        r = solve_view_fit(&w);
    else if (r == 0)
        r = solve_view_fit_bases(&w);
    return r == 0 && ctx ? solve_levels_add_view(&w, ctx) : r;
}

struct level_fit {
    struct solver *v;
    struct level_pool *pool;
    enum side side;
    int result[TABLE_BITS_MAX + 1];
};

/* One width: the places of all head-sides are moved together. */
static void solve_levels_fit_width(void *ctx, size_t item, unsigned worker)
{
    struct level_fit *f = ctx;
    unsigned b = TABLE_BITS_MAX - (unsigned) item; /* wide ones take longest */
    struct level_pool *p = f->pool;
    struct levels *l = &f->v->levels[f->side][b];
    size_t n = 0;

    (void) worker;
    for (uint32_t hs = (uint32_t) f->side; hs < f->v->n_heads; hs += 2) {
        memmove(p->z[b] + n, p->z[b] + p->first[hs][b], p->n[hs][b] * sizeof(float));
        n += p->n[hs][b];
    }
    if (n == 0)
        return;

    if (f->v->model.books[b].state_bits > 0) {
        *l = f->v->model.books[b];
        f->result[b] = trellis_fit(p->z[b], n, b, l);
    } else {
        f->result[b] = levels_fit(p->z[b], n, b, l);
    }
    if (f->result[b] == 0)
        f->result[b] = trellis_scale(l, b, solve_loading(&f->v->o, f->side, b), l);
}

int solve_finish_side(struct solver *v, enum side side, struct errmsg *e)
{
    _cleanup_(level_pool_deinit) struct level_pool p = {0};
    struct level_fit f = {.v = v, .pool = &p, .side = side};
    bool refits = side == SIDE_V && v->o.v_from != PREDICT_NONE;
    int r = 0;

    if (!v->o.fit_levels && !refits)
        return 0;
    if (v->o.fit_levels && level_pool_init(&p, v, side) < 0)
        return fail(e, -ENOMEM, "out of memory for fitting levels");

    r = solver_each_side(v, side == SIDE_K ? "key levels" : "values from stored keys", 1u << side,
                         solve_levels_finish, v->o.fit_levels ? &p : NULL, e);
    if (r < 0 || !v->o.fit_levels)
        return r;

    threads_run(v->threads, solve_levels_fit_width, &f, TABLE_BITS_MAX);
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
        if (f.result[b] < 0)
            return fail(e, f.result[b], "out of memory for fitting levels");
    return 0;
}
