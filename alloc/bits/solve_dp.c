/*
 * dp_solve(): a dynamic programme over the options that an optimum can contain.
 *
 * The textbook programme stores the best D for every head and every budget: n_heads * B_tot * options steps,
 * 5 s for the paper's 256 heads. Here a multiplier l of the lower convex hulls is found first. With
 *     m_h   = min_o (D_o + l c_o)
 *     rho_o = D_o + l c_o - m_h >= 0
 * every choice within the budget B costs
 *     sum D = [sum m_h - l B] + sum rho_o + l (B - sum c_o),
 * where the bracket is a lower bound and the rest is not negative. A feasible choice that greedy filling
 * finds lies a gap g above the bound. So no choice with sum rho > g, and no option with rho > g, can be
 * better. The dynamic programme runs over the remaining options, by deviation from the cheapest of them. No
 * convexity is assumed: a wide gap leaves more options, at worst all.
 */
#include "alloc/bits/solve_dp.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"

#define NO_OPTION UINT16_MAX
#define ROUNDING 1e-12 /* relative to the total: sums of a thousand terms have a smaller error */

struct dp_item {
    uint32_t cost, index; /* of dp_option, within its head */
    double D, rho;
};

/* The items of one head: undominated, by ascending cost and descending D;
 * those on the hull are numbered in @hull. */
struct head_items {
    struct dp_item *item;
    uint32_t *hull;
    uint32_t n, n_hull;
    uint32_t at;    /* the item chosen so far */
    uint16_t *back; /* [hi - lo + 1] after this head: the item taken at each total cost (in units) */
    uint64_t lo, hi;
};

struct dp_step {
    double slope;      /* gain of D per bit */
    uint32_t head, to; /* place in the head's hull */
};

struct dp_work {
    size_t n_heads;
    struct head_items *heads;
    struct dp_item *items; /* of all heads */
    uint32_t *hulls;
    struct dp_step *steps;
    size_t n_steps;
    uint64_t budget, used;
    double multiplier, bound, gap;
    uint64_t n_states;
};

static void dp_work_deinit(struct dp_work *w)
{
    for (size_t h = 0; w->heads && h < w->n_heads; h++)
        free(w->heads[h].back);
    free(w->heads);
    free(w->items);
    free(w->hulls);
    free(w->steps);
}

static int dp_work_init(struct dp_work *w, const struct dp_problem *p)
{
    size_t n = p->n_heads ? p->first[p->n_heads] : 0;

    *w = (struct dp_work){.n_heads = p->n_heads, .budget = p->budget_bits};
    w->heads = calloc(p->n_heads + 1, sizeof(*w->heads));
    w->items = calloc(n + 1, sizeof(*w->items));
    w->hulls = calloc(n + 1, sizeof(*w->hulls));
    w->steps = calloc(n + 1, sizeof(*w->steps));
    return w->heads && w->items && w->hulls && w->steps ? 0 : -ENOMEM;
}

/* ---- hulls and the multiplier ---- */

static int dp_compare_items(const void *a, const void *b)
{
    const struct dp_item *x = a, *y = b;

    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    if (x->D != y->D)
        return x->D < y->D ? -1 : 1;

    return x->index < y->index ? -1 : 1;
}

static double dp_slope_between(const struct dp_item *a, const struct dp_item *b)
{
    return (a->D - b->D) / (double) (b->cost - a->cost);
}

/* Sorts by cost, drops dominated options, marks the lower convex hull. */
static int dp_add_head(struct dp_work *w, const struct dp_problem *p, size_t h)
{
    struct head_items *head = &w->heads[h];
    size_t first = p->first[h], n = p->first[h + 1] - first;

    if (n == 0 || n >= NO_OPTION)
        return -EINVAL;

    head->item = w->items + first;
    head->hull = w->hulls + first;
    for (size_t i = 0; i < n; i++) {
        const struct dp_option *o = &p->options[first + i];

        if (!isfinite(o->D) || o->D < 0)
            return -EINVAL;

        head->item[i] = (struct dp_item){.cost = o->cost, .index = (uint32_t) i, .D = o->D};
    }

    qsort(head->item, n, sizeof(*head->item), dp_compare_items);
    for (size_t i = 0; i < n; i++)
        if (head->n == 0 || head->item[i].D < head->item[head->n - 1].D)
            head->item[head->n++] = head->item[i];
    for (uint32_t i = 0; i < head->n; i++) {
        while (head->n_hull > 1 &&
               dp_slope_between(&head->item[head->hull[head->n_hull - 2]],
                                &head->item[head->hull[head->n_hull - 1]]) <=
                   dp_slope_between(&head->item[head->hull[head->n_hull - 1]], &head->item[i]))
            head->n_hull--;
        head->hull[head->n_hull++] = i;
    }

    for (uint32_t i = 1; i < head->n_hull; i++)
        w->steps[w->n_steps++] = (struct dp_step){
            dp_slope_between(&head->item[head->hull[i - 1]], &head->item[head->hull[i]]), (uint32_t) h, i};
    w->used += head->item[0].cost;
    return 0;
}

static int dp_compare_steps(const void *a, const void *b)
{
    const struct dp_step *x = a, *y = b;

    if (x->slope != y->slope)
        return x->slope > y->slope ? -1 : 1;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;

    return x->to < y->to ? -1 : 1;
}

/* Hull steps in the order of gain per bit, until one does not fit: its slope is the multiplier. */
static void dp_climb(struct dp_work *w)
{
    qsort(w->steps, w->n_steps, sizeof(*w->steps), dp_compare_steps);
    for (size_t i = 0; i < w->n_steps; i++) {
        struct head_items *head = &w->heads[w->steps[i].head];
        uint32_t to = head->hull[w->steps[i].to], more = head->item[to].cost - head->item[head->at].cost;

        if (more > w->budget - w->used) {
            w->multiplier = w->steps[i].slope;
            return;
        }

        head->at = to;
        w->used += more;
    }
}

/* rho of every item, and the Lagrangian bound. */
static void dp_reduce(struct dp_work *w)
{
    w->bound = -w->multiplier * (double) w->budget;
    for (size_t h = 0; h < w->n_heads; h++) {
        struct head_items *head = &w->heads[h];
        double least = INFINITY;

        for (uint32_t i = 0; i < head->n; i++) {
            head->item[i].rho = head->item[i].D + w->multiplier * head->item[i].cost;
            least = fmin(least, head->item[i].rho);
        }

        for (uint32_t i = 0; i < head->n; i++)
            head->item[i].rho -= least;
        w->bound += least;
    }
}

/* Repeatedly takes the item with the largest gain that fits, until none gains: a good feasible choice. */
static void dp_fill(struct dp_work *w)
{
    for (;;) {
        struct head_items *best = NULL;
        uint32_t to = 0;
        double most = 0;

        for (size_t h = 0; h < w->n_heads; h++) {
            struct head_items *x = &w->heads[h];
            uint64_t room = w->budget - w->used + x->item[x->at].cost;

            for (uint32_t i = x->at + 1; i < x->n && x->item[i].cost <= room; i++)
                if (x->item[x->at].D - x->item[i].D > most) {
                    most = x->item[x->at].D - x->item[i].D;
                    best = x;
                    to = i;
                }
        }

        if (!best)
            return;

        w->used += best->item[to].cost - best->item[best->at].cost;
        best->at = to;
    }
}

static double dp_total(const struct dp_work *w)
{
    double D = 0;

    for (size_t h = 0; h < w->n_heads; h++)
        D += w->heads[h].item[w->heads[h].at].D;
    return D;
}

/* ---- dynamic programme ---- */

/* Costs of the core, in units, from the cheapest remaining item of each head. */
struct core {
    uint64_t unit;
    uint64_t base;       /* bits of all cheapest remaining items */
    uint64_t budget;     /* units left above @base */
    uint64_t least_used; /* units: totals below leave so much unspent that no choice can be better */
    uint64_t spread;     /* units that the remaining heads can add */
    double *now, *next;  /* [width] least sum of rho at each total cost */
    uint64_t width;
};

static void dp_core_deinit(struct core *c)
{
    free(c->now);
    free(c->next);
}

static uint64_t dp_gcd(uint64_t a, uint64_t b)
{
    while (b > 0) {
        uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Keeps the items with rho within the gap, among them those chosen by dp_fill(). */
static void dp_keep_candidates(struct dp_work *w, struct core *c)
{
    for (size_t h = 0; h < w->n_heads; h++) {
        struct head_items *head = &w->heads[h];
        uint32_t n = 0, chosen = head->at;

        for (uint32_t i = 0; i < head->n; i++) {
            if (head->item[i].rho > w->gap && i != chosen)
                continue;
            if (i == chosen)
                head->at = n;
            head->item[n++] = head->item[i];
        }

        head->n = n;
        c->base += head->item[0].cost;
        for (uint32_t i = 1; i < n; i++)
            c->unit = dp_gcd(head->item[i].cost - head->item[0].cost, c->unit);
    }
}

static int dp_core_init(struct dp_work *w, struct core *c)
{
    double slack;
    size_t bytes;

    *c = (struct core){.unit = 0};
    dp_keep_candidates(w, c);
    if (c->unit == 0) /* every head has one option left */
        c->unit = 1;
    c->budget = (w->budget - c->base) / c->unit;
    for (size_t h = 0; h < w->n_heads; h++)
        c->spread += (w->heads[h].item[w->heads[h].n - 1].cost - w->heads[h].item[0].cost) / c->unit;
    /* l * (bits unspent) <= g, with one unit of leeway for rounding and for the remainder of the budget */
    slack = w->multiplier > 0 ? w->gap / w->multiplier / (double) c->unit + 1 : INFINITY;
    c->least_used = slack < (double) c->budget ? c->budget - (uint64_t) slack : 0;
    c->width = (c->spread < c->budget ? c->spread : c->budget) + 1;
    if (!checked_mul(c->width, sizeof(double), &bytes))
        return -ENOMEM;

    c->now = malloc(bytes);
    c->next = malloc(bytes);
    return c->now && c->next ? 0 : -ENOMEM;
}

/* next := now with one item of @head added at every total cost of [lo, hi]; head->back records the item. */
static void dp_relax(struct dp_work *w, const struct core *c, struct head_items *head, uint64_t lo,
                     uint64_t hi)
{
    for (uint64_t x = head->lo; x <= head->hi; x++)
        c->next[x] = INFINITY;
    for (uint32_t i = 0; i < head->n; i++) {
        uint64_t add = (head->item[i].cost - head->item[0].cost) / c->unit;
        uint64_t from = head->lo > add + lo ? head->lo - add : lo, to;
        double rho = head->item[i].rho;

        if (head->hi < add)
            break; /* ascending costs */
        to = head->hi - add < hi ? head->hi - add : hi;
        for (uint64_t x = from; x <= to; x++)
            if (c->now[x] + rho < c->next[x + add]) {
                c->next[x + add] = c->now[x] + rho;
                head->back[x + add - head->lo] = (uint16_t) i;
            }
        w->n_states += to >= from ? to - from + 1 : 0;
    }
}

/* Narrows the head's range to the totals that can still be part of a better choice. */
static bool dp_narrow(const struct dp_work *w, struct core *c, struct head_items *head)
{
    uint64_t lo = head->lo, hi = head->hi;

    for (uint64_t x = lo; x <= hi; x++)
        if (c->next[x] > w->gap)
            c->next[x] = INFINITY;
    while (lo < hi && isinf(c->next[lo]))
        lo++;
    while (hi > lo && isinf(c->next[hi]))
        hi--;
    if (isinf(c->next[lo]))
        return false;

    memmove(head->back, head->back + (lo - head->lo), (hi - lo + 1) * sizeof(*head->back));
    head->lo = lo;
    head->hi = hi;
    return true;
}

/* Return: 0; 1: no better choice than that of dp_fill(); -ENOMEM. */
static int dp_run_core(struct dp_work *w, struct core *c)
{
    uint64_t lo = 0, hi = 0;

    c->now[0] = 0;
    for (size_t h = 0; h < w->n_heads; h++) {
        struct head_items *head = &w->heads[h];
        uint64_t own = (head->item[head->n - 1].cost - head->item[0].cost) / c->unit;
        double *swap;

        c->spread -= own; /* heads after this one */
        head->hi = hi + own < c->budget ? hi + own : c->budget;
        head->lo = c->least_used > c->spread ? c->least_used - c->spread : 0;
        if (head->lo < lo)
            head->lo = lo;
        if (head->lo > head->hi)
            return 1;

        head->back = malloc((head->hi - head->lo + 1) * sizeof(*head->back));
        if (!head->back)
            return -ENOMEM;

        dp_relax(w, c, head, lo, hi);
        if (!dp_narrow(w, c, head))
            return 1;

        lo = head->lo;
        hi = head->hi;
        swap = c->now;
        c->now = c->next;
        c->next = swap;
    }

    return 0;
}

/* From the best total back to one item per head. */
static void dp_trace_back(struct dp_work *w, const struct core *c, uint32_t *ret_at)
{
    const struct head_items *last = &w->heads[w->n_heads - 1];
    double least = INFINITY;
    uint64_t x = last->lo;

    for (uint64_t i = last->lo; i <= last->hi; i++) {
        double value = c->now[i] + w->multiplier * (double) (c->unit * (c->budget - i));

        if (value < least) {
            least = value;
            x = i;
        }
    }

    for (size_t h = w->n_heads; h-- > 0;) {
        const struct head_items *head = &w->heads[h];

        ret_at[h] = head->back[x - head->lo];
        x -= (head->item[ret_at[h]].cost - head->item[0].cost) / c->unit;
    }
}

/* Replaces the choice of dp_fill() if the programme finds a better one. */
static int dp_improve(struct dp_work *w)
{
    _cleanup_(dp_core_deinit) struct core c = {0};
    _cleanup_(freep) uint32_t *at = calloc(w->n_heads, sizeof(*at));
    double D = dp_total(w), better = 0;
    int r;

    if (!at)
        return -ENOMEM;

    w->gap = D - w->bound + ROUNDING * (D + w->multiplier * (double) w->budget);
    r = dp_core_init(w, &c);
    if (r < 0)
        return r;

    r = dp_run_core(w, &c);
    if (r < 0)
        return r;
    if (r > 0) /* dp_fill() has found the best choice */
        return 0;

    dp_trace_back(w, &c, at);
    for (size_t h = 0; h < w->n_heads; h++)
        better += w->heads[h].item[at[h]].D;
    for (size_t h = 0; better < D && h < w->n_heads; h++)
        w->heads[h].at = at[h];
    return 0;
}

int dp_solve(const struct dp_problem *p, uint32_t *ret_choice, struct dp_result *ret)
{
    _cleanup_(dp_work_deinit) struct dp_work w = {0};
    int r = dp_work_init(&w, p);

    if (r < 0)
        return r;

    for (size_t h = 0; h < p->n_heads; h++) {
        r = dp_add_head(&w, p, h);
        if (r < 0)
            return r;
    }

    if (w.used > w.budget) {
        ret->used_bits = w.used;
        return -ERANGE;
    }

    dp_climb(&w);
    dp_reduce(&w);
    dp_fill(&w);
    if (w.multiplier > 0 && w.n_heads > 0) { /* else every head has its best option */
        r = dp_improve(&w);
        if (r < 0)
            return r;
    }

    *ret = (struct dp_result){.D = dp_total(&w), .lower_bound = w.bound, .n_states = w.n_states};
    for (size_t h = 0; h < w.n_heads; h++) {
        ret_choice[h] = w.heads[h].item[w.heads[h].at].index;
        ret->used_bits += w.heads[h].item[w.heads[h].at].cost;
    }

    return 0;
}

/* ---- options of a head ---- */

size_t dp_head_options(const double *D, uint32_t d, const struct paper_options *o, struct dp_option *ret)
{
    uint32_t n_b = o->b_max - o->b_min + 1, B_min = (uint32_t) ceil(o->B_min);
    size_t n = 0;

    ret[n++] = (struct dp_option){.cost = B_min, .D = D[0]};
    for (uint32_t r = o->rank_step; r <= d; r += o->rank_step)
        for (uint32_t b = o->b_min; b <= o->b_max; b++)
            ret[n++] = (struct dp_option){
                .cost = r * b > B_min ? r * b : B_min,
                .r = (uint16_t) r,
                .b = (uint16_t) b,
                .D = D[r / o->rank_step * n_b + b - o->b_min],
            };
    return n;
}

void dp_curve(const double *w, uint32_t d, const double *q, const struct paper_options *o, double *ret_D)
{
    double head = 0; /* sum_{i<=r} w_i */

    for (uint32_t r = 0; r <= d; r += o->rank_step) {
        double tail = 0; /* sum_{i>r} w_i */

        for (uint32_t i = d; i-- > r;) /* smallest first: no difference of large sums */
            tail += w[i];
        for (uint32_t b = o->b_min; b <= o->b_max; b++)
            *ret_D++ = tail + q[b] * head;
        for (uint32_t i = r; i < d && i < r + o->rank_step; i++)
            head += w[i];
    }
}
