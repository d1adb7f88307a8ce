/*
 * The bands knapsack. solve_bands_items.c turns constraints into items. This file takes steps along their
 * lower convex hulls in the order of gain, which gives the Lagrangian optimum up to one step.
 * solve_bands_core.c spends the units that are left.
 */
#include "alloc/bits/solve_bands.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_bands_items.h"
#include "base/cleanup.h"

/* A step from one hull vertex of an item to the next. */
struct solve_bands_step {
    double gain; /* distortion per unit */
    uint32_t item;
    uint32_t from, to; /* points */
};

static double solve_bands_gain_between(const struct bands_item *it, uint32_t from, uint32_t to)
{
    const struct bands_point *a = &it->points[from], *b = &it->points[to];

    return (a->distortion - b->distortion) / (double) (b->cost - a->cost);
}

/*
 * Lower convex hull of an item's points as steps of falling gain. Later code compares the stored gains and
 * does not compute them again: rounding cannot sort a later step of an item before an earlier one.
 */
static size_t solve_bands_hull_steps(const struct bands_item *it, uint32_t item, struct solve_bands_step *ret)
{
    size_t n = 0;

    for (uint32_t to = 1; to < it->n_points; to++) {
        struct solve_bands_step s = {solve_bands_gain_between(it, to - 1, to), item, to - 1, to};

        while (n > 0 && ret[n - 1].gain < s.gain) {
            s.from = ret[--n].from;
            s.gain = solve_bands_gain_between(it, s.from, to);
        }

        ret[n++] = s;
    }

    return n;
}

static int solve_bands_compare_steps(const void *pa, const void *pb)
{
    const struct solve_bands_step *a = pa, *b = pb;

    if (a->gain != b->gain)
        return a->gain > b->gain ? -1 : 1;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;

    return a->to < b->to ? -1 : a->to > b->to;
}

static uint32_t solve_bands_step_cost(const struct bands_items *s, const struct solve_bands_step *st)
{
    const struct bands_point *p = s->items[st->item].points;

    return p[st->to].cost - p[st->from].cost;
}

static int solve_bands_all_steps(const struct bands_items *s, struct solve_bands_step **ret_steps,
                                 size_t *ret_n)
{
    struct solve_bands_step *steps = calloc(s->n_points + 1, sizeof(*steps));
    size_t n = 0;

    if (!steps)
        return -ENOMEM;

    for (size_t k = 0; k < s->n_items; k++)
        n += solve_bands_hull_steps(&s->items[k], (uint32_t) k, steps + n);
    qsort(steps, n, sizeof(*steps), solve_bands_compare_steps);
    *ret_steps = steps;
    *ret_n = n;
    return 0;
}

/*
 * Takes each step that still fits after the first that did not: a quick, good use of the remainder.
 * @ret_points [n_items]: the choice with these steps. Return: distortion gained.
 */
static double solve_bands_fill(const struct bands_items *s, const struct solve_bands_step *steps, size_t n,
                               uint64_t leftover, uint32_t *ret_points)
{
    double gained = 0;

    for (size_t k = 0; k < s->n_items; k++)
        ret_points[k] = s->items[k].base;
    for (size_t i = 0; i < n && leftover > 0; i++) {
        uint32_t cost = solve_bands_step_cost(s, &steps[i]);

        if (ret_points[steps[i].item] != steps[i].from || cost > leftover)
            continue;

        ret_points[steps[i].item] = steps[i].to;
        leftover -= cost;
        gained += steps[i].gain * cost;
    }

    return gained;
}

/* Chooses the points of all items; the cheapest ones cost @cost units and fit. */
static int solve_bands_choose(struct bands_items *s, uint64_t cost, double *ret_multiplier)
{
    _cleanup_(freep) struct solve_bands_step *steps = NULL;
    _cleanup_(freep) uint32_t *filled = NULL;
    double gained, multiplier = 0;
    size_t n, i;
    int r;

    r = solve_bands_all_steps(s, &steps, &n);
    if (r < 0)
        return r;

    for (i = 0; i < n && solve_bands_step_cost(s, &steps[i]) <= s->budget - cost; i++) {
        s->items[steps[i].item].base = steps[i].to;
        cost += solve_bands_step_cost(s, &steps[i]);
        multiplier = steps[i].gain;
    }

    *ret_multiplier = multiplier / s->unit_bits;
    if (i == n || cost == s->budget) /* no step or no budget left: optimal */
        return 0;

    filled = calloc(s->n_items, sizeof(*filled));
    if (!filled)
        return -ENOMEM;

    gained = solve_bands_fill(s, steps + i, n - i, s->budget - cost, filled);
    r = bands_improve(s, steps[i].gain, s->budget - cost, gained);
    if (r < 0)
        return r;
    if (r > 0) /* bands_improve() found a better choice */
        return 0;

    for (size_t k = 0; k < s->n_items; k++)
        s->items[k].base = filled[k];
    return 0;
}

static void solve_bands_sum_up(const struct bands_items *s, struct bands_result *res)
{
    uint64_t units = 0;

    res->distortion = 0;
    for (size_t k = 0; k < s->n_items; k++) {
        res->distortion += s->items[k].points[s->items[k].base].distortion;
        units += s->items[k].points[s->items[k].base].cost;
    }
    res->used_bits = units * s->unit_bits;
}

int bands_solve(const struct bands_problem *p, uint8_t *ret_bits, struct bands_result *ret)
{
    _cleanup_(bands_items_deinit) struct bands_items s = {0};
    struct bands_result res = {0};
    uint64_t least = 0;
    int r;

    r = bands_items_init(&s, p);
    if (r < 0)
        return r;

    for (size_t k = 0; k < s.n_items; k++)
        least += s.items[k].points[0].cost;
    if (least > s.budget) {
        ret->used_bits = least * s.unit_bits;
        return -ERANGE;
    }

    r = solve_bands_choose(&s, least, &res.multiplier);
    if (r < 0)
        return r;

    r = bands_items_bits(&s, ret_bits);
    if (r < 0)
        return r;

    solve_bands_sum_up(&s, &res);
    *ret = res;
    return 0;
}
