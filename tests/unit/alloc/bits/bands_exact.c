/*
 * See bands_exact.h. It tries every band, width and number of bits, and shares no code with solve_bands.c.
 * f[t][u] is the least distortion of the bands so far with t bits in total and u bits in the current group.
 * Memory is bands x budget x group: for problems of a few bands.
 */
#include "tests/unit/alloc/bits/bands_exact.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cleanup.h"

struct exact {
    const struct bands_problem *p;
    size_t n_t, n_u;   /* states: budget + 1, largest group + 1 (1 without groups) */
    size_t *order;     /* [n_bands] bands by group */
    double *f, *next;  /* [n_t, n_u] */
    uint8_t *bits;     /* [n_bands, n_t, n_u] width of the band on the best way here */
    uint32_t *group_u; /* [n_groups, n_t] bits of the group on the best way to t at its end */
};

static void exact_deinit(struct exact *x)
{
    free(x->order);
    free(x->f);
    free(x->next);
    free(x->bits);
    free(x->group_u);
}

static bool bands_exact_grouped(const struct bands_problem *p)
{
    return p->group && (p->floor_bits || p->ceil_bits);
}

static bool bands_exact_allowed(const struct bands_problem *p, size_t g, size_t u)
{
    return (!p->floor_bits || u >= p->floor_bits[g]) && (!p->ceil_bits || u <= p->ceil_bits[g]);
}

/* Fills x->order with the bands by ascending group, stable.
 * Return: the largest cost of a group; 0 without groups. */
static size_t bands_exact_order(struct exact *x)
{
    size_t n = 0, largest = 0, n_groups = bands_exact_grouped(x->p) ? x->p->n_groups : 1;

    for (size_t g = 0; g < n_groups; g++) {
        size_t cost = 0;

        for (size_t i = 0; i < x->p->n_bands; i++)
            if (!bands_exact_grouped(x->p) || x->p->group[i] == g) {
                x->order[n++] = i;
                cost += 8 * (size_t) x->p->coords[i];
            }
        largest = cost > largest ? cost : largest;
    }

    return bands_exact_grouped(x->p) ? largest : 0;
}

/* Smallest allowed sum of bits of group @g, by marking every possible sum. */
static int bands_exact_group_least(const struct bands_problem *p, size_t g, size_t largest, uint64_t *ret)
{
    _cleanup_(freep) bool *can = calloc(largest + 1, sizeof(bool));

    if (!can)
        return -ENOMEM;

    can[0] = true;
    for (size_t i = 0; i < p->n_bands; i++)
        if (p->group[i] == g)
            for (size_t u = largest + 1; u-- > 0;)
                for (size_t b = 1; b <= 8 && !can[u]; b++)
                    can[u] = b * p->coords[i] <= u && can[u - b * p->coords[i]];
    for (size_t u = 0; u <= largest; u++)
        if (can[u] && bands_exact_allowed(p, g, u)) {
            *ret = u;
            return 0;
        }
    return -EINVAL;
}

static int bands_exact_check_least(const struct exact *x, size_t largest, struct bands_result *ret)
{
    uint64_t least = 0;

    for (size_t g = 0; bands_exact_grouped(x->p) && g < x->p->n_groups; g++) {
        uint64_t one;
        int r = bands_exact_group_least(x->p, g, largest, &one);

        if (r < 0)
            return r;

        least += one;
    }

    if (least > x->p->budget_bits) {
        ret->used_bits = least;
        return -ERANGE;
    }

    return 0;
}

static int exact_alloc(struct exact *x, size_t largest)
{
    size_t n_states, n_bits;

    if (!checked_add(x->p->budget_bits, 1, &x->n_t) || !checked_add(largest, 1, &x->n_u) ||
        !checked_mul(x->n_t, x->n_u, &n_states) || !checked_mul(n_states, x->p->n_bands + 1, &n_bits))
        return -ENOMEM;

    x->f = calloc(n_states, sizeof(*x->f));
    x->next = calloc(n_states, sizeof(*x->next));
    x->bits = calloc(n_bits, 1);
    x->group_u = calloc(x->n_t, (x->p->n_groups + 1) * sizeof(*x->group_u));
    return x->f && x->next && x->bits && x->group_u ? 0 : -ENOMEM;
}

static void bands_exact_clear_states(const struct exact *x, double *f)
{
    for (size_t i = 0; i < x->n_t * x->n_u; i++)
        f[i] = INFINITY;
}

static void bands_exact_swap_states(struct exact *x)
{
    double *t = x->f;

    x->f = x->next;
    x->next = t;
}

static void bands_exact_add(struct exact *x, size_t k)
{
    size_t i = x->order[k];

    bands_exact_clear_states(x, x->next);
    for (size_t t = 0; t < x->n_t; t++)
        for (size_t u = 0; u < x->n_u; u++)
            for (unsigned b = 0; b < BANDS_OPTIONS; b++) {
                size_t c = (size_t) b * x->p->coords[i], t2 = t + c,
                       u2 = bands_exact_grouped(x->p) ? u + c : 0;
                double d = x->f[t * x->n_u + u] + x->p->distortion[i * BANDS_OPTIONS + b];

                if (t2 < x->n_t && u2 < x->n_u && d < x->next[t2 * x->n_u + u2]) {
                    x->next[t2 * x->n_u + u2] = d;
                    x->bits[(k * x->n_t + t2) * x->n_u + u2] = (uint8_t) b;
                }
            }
    bands_exact_swap_states(x);
}

/* Ends a group: keeps the states with an allowed number of bits. The next group starts at u = 0. */
static void bands_exact_end_group(struct exact *x, size_t g)
{
    bands_exact_clear_states(x, x->next);
    for (size_t t = 0; t < x->n_t; t++)
        for (size_t u = 0; u < x->n_u; u++)
            if (bands_exact_allowed(x->p, g, u) && x->f[t * x->n_u + u] < x->next[t * x->n_u]) {
                x->next[t * x->n_u] = x->f[t * x->n_u + u];
                x->group_u[g * x->n_t + t] = (uint32_t) u;
            }
    bands_exact_swap_states(x);
}

static void bands_exact_walk_back(const struct exact *x, size_t t, uint8_t *ret_bits)
{
    size_t k = x->p->n_bands, n_groups = bands_exact_grouped(x->p) ? x->p->n_groups : 1;

    for (size_t g = n_groups; g-- > 0;) {
        size_t u = bands_exact_grouped(x->p) ? x->group_u[g * x->n_t + t] : 0;

        while (k > 0 && (!bands_exact_grouped(x->p) || x->p->group[x->order[k - 1]] == g)) {
            size_t i = x->order[--k];
            uint8_t b = x->bits[(k * x->n_t + t) * x->n_u + u];

            ret_bits[i] = b;
            t -= (size_t) b * x->p->coords[i];
            u -= bands_exact_grouped(x->p) ? (size_t) b * x->p->coords[i] : 0;
        }
    }
}

int bands_solve_exact(const struct bands_problem *p, uint8_t *ret_bits, struct bands_result *ret)
{
    _cleanup_(exact_deinit) struct exact x = {.p = p};
    size_t largest, best = 0;
    int r;

    x.order = calloc(p->n_bands + 1, sizeof(*x.order));
    if (!x.order)
        return -ENOMEM;

    largest = bands_exact_order(&x);
    r = bands_exact_check_least(&x, largest, ret);
    if (r < 0)
        return r;

    r = exact_alloc(&x, largest);
    if (r < 0)
        return r;

    bands_exact_clear_states(&x, x.f);
    x.f[0] = 0;
    for (size_t k = 0, g = 0; k < p->n_bands || (bands_exact_grouped(p) && g < p->n_groups);)
        if (bands_exact_grouped(p) && (k == p->n_bands || p->group[x.order[k]] != g))
            bands_exact_end_group(&x, g++);
        else
            bands_exact_add(&x, k++);
    for (size_t t = 1; t < x.n_t; t++)
        if (x.f[t * x.n_u] < x.f[best * x.n_u])
            best = t;
    bands_exact_walk_back(&x, best, ret_bits);
    *ret = (struct bands_result){.distortion = x.f[best * x.n_u], .used_bits = best};
    return 0;
}
