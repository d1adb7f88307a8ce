/*
 * Turns bands and groups into items; see solve_bands_items.h. The curve of a group is, over its bands k,
 *     f_k[c] = min_b f_(k-1)[c - cost(b)] + D_k(b).
 * Floors and ceilings then cut the curve. With 16 bands of 8 coordinates it takes 18 000 additions per group.
 */
#include "alloc/bits/solve_bands_items.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"

#define MAX_BITS (BANDS_OPTIONS - 1)

static uint64_t bands_items_group_floor(const struct bands_problem *p, size_t g)
{
    return p->floor_bits ? p->floor_bits[g] : 0;
}

static uint64_t bands_items_group_ceil(const struct bands_problem *p, size_t g)
{
    return p->ceil_bits ? p->ceil_bits[g] : UINT64_MAX;
}

static uint32_t bands_items_gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t t = a % b;

        a = b;
        b = t;
    }
    return a;
}

static int bands_items_check_problem(const struct bands_problem *p, uint32_t *ret_unit)
{
    uint32_t unit = 0;

    if (p->n_bands > UINT32_MAX || p->n_groups > UINT32_MAX)
        return -EINVAL;

    for (size_t i = 0; i < p->n_bands; i++) {
        if (p->coords[i] == 0 || p->coords[i] > BANDS_COORDS_MAX)
            return -EINVAL;
        if (p->group && p->group[i] >= p->n_groups)
            return -EINVAL;

        for (unsigned b = 0; b < BANDS_OPTIONS; b++)
            if (!isfinite(p->distortion[i * BANDS_OPTIONS + b]))
                return -EINVAL;
        unit = bands_items_gcd(p->coords[i], unit);
    }

    *ret_unit = unit ? unit : 1;
    return 0;
}

/* Bands of each group, in ascending order: a counting sort. */
static int bands_items_sort_by_group(struct bands_items *s)
{
    const struct bands_problem *p = s->problem;

    s->group_first = calloc(p->n_groups + 1, sizeof(*s->group_first));
    s->members = calloc(p->n_bands + 1, sizeof(*s->members));
    if (!s->group_first || !s->members)
        return -ENOMEM;

    for (size_t i = 0; i < p->n_bands; i++)
        s->group_first[p->group[i] + 1]++;
    for (size_t g = 0; g < p->n_groups; g++)
        s->group_first[g + 1] += s->group_first[g];
    for (size_t i = 0; i < p->n_bands; i++)
        s->members[s->group_first[p->group[i]]++] = i;
    for (size_t g = p->n_groups; g > 0; g--) /* undo: filling moved the start of each group to its end */
        s->group_first[g] = s->group_first[g - 1];
    s->group_first[0] = 0;
    return 0;
}

/* Cost of a group with all its bands at 8 bits, in units. */
static uint64_t bands_items_group_full_cost(const struct bands_items *s, size_t g)
{
    uint64_t cost = 0;

    for (size_t m = s->group_first[g]; m < s->group_first[g + 1]; m++)
        cost += MAX_BITS * (s->problem->coords[s->members[m]] / s->unit_bits);
    return cost;
}

/* Whether a floor or ceiling can bind. If not, each band of the group becomes an item. */
static bool bands_items_group_bound(const struct bands_items *s, size_t g)
{
    return bands_items_group_floor(s->problem, g) > 0 ||
           bands_items_group_ceil(s->problem, g) < bands_items_group_full_cost(s, g) * s->unit_bits;
}

/* ---- curves ---- */

/* Appends a point unless a cheaper one is at least as good. */
static void bands_items_add_point(struct bands_items *s, struct bands_item *it, uint32_t cost,
                                  double distortion)
{
    if (it->n_points > 0 && distortion >= it->points[it->n_points - 1].distortion)
        return;

    it->points[it->n_points++] = (struct bands_point){cost, distortion};
    s->n_points++;
}

static struct bands_item *bands_items_append(struct bands_items *s, size_t index)
{
    struct bands_item *it = &s->items[s->n_items++];

    *it = (struct bands_item){.points = s->points + s->n_points, .index = (uint32_t) index};
    return it;
}

static void bands_items_add_band(struct bands_items *s, size_t i)
{
    struct bands_item *it = bands_items_append(s, i);
    uint32_t cost = s->problem->coords[i] / s->unit_bits;

    for (unsigned b = 0; b < BANDS_OPTIONS; b++)
        bands_items_add_point(s, it, cost * b, s->problem->distortion[i * BANDS_OPTIONS + b]);
}

/* Exact curve of a group. f and choice have room for the largest group and are reused for each. */
struct group_dp {
    uint32_t full;    /* cost of all members at 8 bits */
    double *f, *next; /* [full + 1] */
    uint8_t *choice;  /* [members, full + 1] bits of the member on the best way to a cost */
};

static void bands_items_group_dp_deinit(struct group_dp *dp)
{
    free(dp->f);
    free(dp->next);
    free(dp->choice);
}

static int bands_items_group_dp_init(struct group_dp *dp, const struct bands_items *s)
{
    uint32_t full = 0;

    for (size_t g = 0; s->group_first && g < s->problem->n_groups; g++) {
        uint32_t cost;

        if (!bands_items_group_bound(s, g))
            continue;
        if (s->group_first[g + 1] - s->group_first[g] > BANDS_GROUP_MAX)
            return -EINVAL;

        cost = (uint32_t) bands_items_group_full_cost(s, g); /* 64 bands of 256 coordinates: far below 2^32 */
        full = cost > full ? cost : full;
    }

    dp->f = calloc((size_t) full + 1, sizeof(*dp->f));
    dp->next = calloc((size_t) full + 1, sizeof(*dp->next));
    dp->choice = calloc((size_t) full + 1, BANDS_GROUP_MAX);
    return dp->f && dp->next && dp->choice ? 0 : -ENOMEM;
}

static void bands_items_group_dp_run(struct group_dp *dp, const struct bands_items *s, size_t g)
{
    uint32_t reach = 0; /* costs above cannot be reached yet */
    size_t width;

    dp->full = (uint32_t) bands_items_group_full_cost(s, g);
    width = (size_t) dp->full + 1;
    dp->f[0] = 0;
    for (size_t k = 0; k < s->group_first[g + 1] - s->group_first[g]; k++) {
        size_t i = s->members[s->group_first[g] + k];
        uint32_t cost = s->problem->coords[i] / s->unit_bits;

        for (uint32_t c = 0; c <= reach + MAX_BITS * cost; c++)
            dp->next[c] = INFINITY;
        for (unsigned b = 0; b < BANDS_OPTIONS; b++) {
            double d = s->problem->distortion[i * BANDS_OPTIONS + b];

            for (uint32_t c = 0; c <= reach; c++)
                if (dp->f[c] + d < dp->next[c + b * cost]) {
                    dp->next[c + b * cost] = dp->f[c] + d;
                    dp->choice[k * width + c + b * cost] = (uint8_t) b;
                }
        }

        reach += MAX_BITS * cost;
        memcpy(dp->f, dp->next, ((size_t) reach + 1) * sizeof(*dp->f));
    }
}

static int bands_items_add_group(struct bands_items *s, struct group_dp *dp, size_t g)
{
    struct bands_item *it = bands_items_append(s, g);
    uint64_t floor = bands_items_group_floor(s->problem, g), ceil = bands_items_group_ceil(s->problem, g);

    bands_items_group_dp_run(dp, s, g);
    for (uint32_t c = 0; c <= dp->full; c++) {
        uint64_t bits = (uint64_t) c * s->unit_bits;

        if (bits >= floor && bits <= ceil && isfinite(dp->f[c]))
            bands_items_add_point(s, it, c, dp->f[c]);
    }
    return it->n_points > 0 ? 0 : -EINVAL;
}

/* ---- problem ---- */

/* Room for every point that could be added. */
static int bands_items_alloc(struct bands_items *s)
{
    const struct bands_problem *p = s->problem;
    size_t n_items, n_points;

    if (!checked_mul(p->n_bands, BANDS_OPTIONS, &n_points) || !checked_add(p->n_bands, p->n_groups, &n_items))
        return -ENOMEM;

    for (size_t g = 0; s->group_first && g < p->n_groups; g++)
        if (bands_items_group_bound(s, g) &&
            !checked_add(n_points, bands_items_group_full_cost(s, g) + 1, &n_points))
            return -ENOMEM;
    s->items = calloc(n_items + 1, sizeof(*s->items));
    s->points = calloc(n_points + 1, sizeof(*s->points));
    return s->items && s->points ? 0 : -ENOMEM;
}

int bands_items_init(struct bands_items *s, const struct bands_problem *p)
{
    _cleanup_(bands_items_group_dp_deinit) struct group_dp dp = {0};
    int r;

    *s = (struct bands_items){.problem = p};
    r = bands_items_check_problem(p, &s->unit_bits);
    if (r < 0)
        return r;

    s->budget = p->budget_bits / s->unit_bits;
    if (p->group && (p->floor_bits || p->ceil_bits)) {
        r = bands_items_sort_by_group(s);
        if (r < 0)
            return r;
    }

    r = bands_items_group_dp_init(&dp, s);
    if (r < 0)
        return r;

    r = bands_items_alloc(s);
    if (r < 0)
        return r;

    for (size_t i = 0; i < p->n_bands; i++)
        if (!p->group || !s->group_first || !bands_items_group_bound(s, p->group[i]))
            bands_items_add_band(s, i);
    s->n_band_items = s->n_items;
    for (size_t g = 0; s->group_first && g < p->n_groups; g++)
        if (bands_items_group_bound(s, g)) {
            r = bands_items_add_group(s, &dp, g);
            if (r < 0)
                return r;
        }
    return 0;
}

void bands_items_deinit(struct bands_items *s)
{
    free(s->items);
    free(s->points);
    free(s->group_first);
    free(s->members);
    *s = (struct bands_items){0};
}

/* Runs the group's programme again and walks back from the chosen cost. */
static void bands_items_group_bits(const struct bands_items *s, struct group_dp *dp,
                                   const struct bands_item *it, uint8_t *ret_bits)
{
    size_t first = s->group_first[it->index], n = s->group_first[it->index + 1] - first, width;
    uint32_t c = it->points[it->base].cost;

    bands_items_group_dp_run(dp, s, it->index);
    width = (size_t) dp->full + 1;
    for (size_t k = n; k-- > 0;) {
        uint8_t b = dp->choice[k * width + c];

        ret_bits[s->members[first + k]] = b;
        c -= b * (s->problem->coords[s->members[first + k]] / s->unit_bits);
    }
}

int bands_items_bits(const struct bands_items *s, uint8_t *ret_bits)
{
    _cleanup_(bands_items_group_dp_deinit) struct group_dp dp = {0};
    int r;

    r = bands_items_group_dp_init(&dp, s);
    if (r < 0)
        return r;

    for (size_t k = 0; k < s->n_items; k++) {
        const struct bands_item *it = &s->items[k];

        if (k < s->n_band_items)
            ret_bits[it->index] =
                (uint8_t) (it->points[it->base].cost / (s->problem->coords[it->index] / s->unit_bits));
        else
            bands_items_group_bits(s, &dp, it, ret_bits);
    }

    return 0;
}
