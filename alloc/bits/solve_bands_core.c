/* Spends the units that greedy choices leave over; see bands_improve() in solve_bands_items.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_bands_items.h"
#include "base/cleanup.h"

/* At most 256 items over +-1024 units: a few million additions. Real remainders keep about a dozen items. */
#define CORE_ITEMS 256
#define CORE_WINDOW 1024

/* Reduced cost of a point: distortion + lambda * cost, less that of the chosen
 * point. Not negative, up to rounding. */
static double bands_core_reduced_cost(const struct bands_item *it, uint32_t point, double lambda)
{
    const struct bands_point *a = &it->points[it->base], *b = &it->points[point];

    return b->distortion - a->distortion + lambda * ((double) b->cost - (double) a->cost);
}

struct core_item {
    struct bands_item *item;
    double nearest; /* least reduced cost among its other points */
};

static int bands_core_compare_nearest(const void *pa, const void *pb)
{
    const struct core_item *a = pa, *b = pb;

    if (a->nearest != b->nearest)
        return a->nearest < b->nearest ? -1 : 1;

    return a->item < b->item ? -1 : a->item > b->item;
}

/* The items that have a point within @gap, nearest first. */
static size_t bands_core_pick(struct bands_items *s, double lambda, double gap, struct core_item *ret)
{
    size_t n = 0;

    for (size_t k = 0; k < s->n_items; k++) {
        struct bands_item *it = &s->items[k];
        double nearest = INFINITY;

        for (uint32_t o = 0; o < it->n_points; o++)
            if (o != it->base)
                nearest = fmin(nearest, bands_core_reduced_cost(it, o, lambda));
        if (nearest < gap)
            ret[n++] = (struct core_item){it, nearest};
    }

    qsort(ret, n, sizeof(*ret), bands_core_compare_nearest);
    return n < CORE_ITEMS ? n : CORE_ITEMS;
}

struct core_dp {
    long window;      /* deviations from the chosen cost, -window .. window */
    double *f, *next; /* [2 window + 1] least change of distortion at a deviation */
    uint16_t *choice; /* [items, 2 window + 1] point + 1; 0 = unchanged */
};

static void core_dp_deinit(struct core_dp *dp)
{
    free(dp->f);
    free(dp->next);
    free(dp->choice);
}

static int core_dp_init(struct core_dp *dp, const struct core_item *core, size_t n)
{
    size_t width;

    for (size_t k = 0; k < n && dp->window < CORE_WINDOW; k++)
        dp->window += (long) core[k].item->points[core[k].item->n_points - 1].cost;
    dp->window = dp->window < CORE_WINDOW ? dp->window : CORE_WINDOW;
    width = 2 * (size_t) dp->window + 1;
    dp->f = calloc(width, sizeof(*dp->f));
    dp->next = calloc(width, sizeof(*dp->next));
    dp->choice = calloc(width * n, sizeof(*dp->choice));
    return dp->f && dp->next && dp->choice ? 0 : -ENOMEM;
}

static void core_dp_add(struct core_dp *dp, const struct core_item *c, size_t k, double lambda, double gap)
{
    const struct bands_item *it = c->item;
    long width = 2 * dp->window + 1;
    uint16_t *choice = dp->choice + k * (size_t) width;

    memcpy(dp->next, dp->f, (size_t) width * sizeof(*dp->f));
    for (uint32_t o = 0; o < it->n_points && o < UINT16_MAX; o++) {
        long shift = (long) it->points[o].cost - (long) it->points[it->base].cost;
        double change = it->points[o].distortion - it->points[it->base].distortion;

        if (o == it->base || bands_core_reduced_cost(it, o, lambda) >= gap)
            continue;

        for (long x = shift > 0 ? shift : 0; x < width && x - shift < width; x++)
            if (dp->f[x - shift] + change < dp->next[x]) {
                dp->next[x] = dp->f[x - shift] + change;
                choice[x] = (uint16_t) (o + 1);
            }
    }

    memcpy(dp->f, dp->next, (size_t) width * sizeof(*dp->f));
}

static void core_dp_apply(const struct core_dp *dp, const struct core_item *core, size_t n, long x)
{
    long width = 2 * dp->window + 1;

    for (size_t k = n; k-- > 0;) {
        struct bands_item *it = core[k].item;
        uint16_t c = dp->choice[k * (size_t) width + (size_t) x];

        if (c == 0)
            continue;
        x -= (long) it->points[c - 1].cost - (long) it->points[it->base].cost;
        it->base = c - 1u;
    }
}

int bands_improve(struct bands_items *s, double lambda, uint64_t leftover, double gained)
{
    _cleanup_(freep) struct core_item *core = NULL;
    _cleanup_(core_dp_deinit) struct core_dp dp = {0};
    double gap = lambda * (double) leftover - gained, best = -gained;
    long best_x = -1;
    size_t n;
    int r;

    if (!(gap > 1e-12 * lambda * (double) leftover)) /* the possible gain is within rounding */
        return 0;

    core = calloc(s->n_items, sizeof(*core));
    if (!core)
        return -ENOMEM;

    n = bands_core_pick(s, lambda, gap, core);
    if (n == 0)
        return 0;

    r = core_dp_init(&dp, core, n);
    if (r < 0)
        return r;

    for (long x = 0; x <= 2 * dp.window; x++)
        dp.f[x] = x == dp.window ? 0 : INFINITY;
    for (size_t k = 0; k < n; k++)
        core_dp_add(&dp, &core[k], k, lambda, gap);
    for (long x = 0; x <= 2 * dp.window; x++)
        if ((x <= dp.window || (uint64_t) (x - dp.window) <= leftover) && dp.f[x] < best) {
            best = dp.f[x];
            best_x = x;
        }
    if (best_x < 0)
        return 0;

    core_dp_apply(&dp, core, n, best_x);
    return 1;
}
