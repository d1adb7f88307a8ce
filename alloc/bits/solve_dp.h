/*
 * The paper's exact alternative to C2 (appendix "C2 solver choice"): one option per head, least total
 * distortion, total bits within the budget, no convexity assumed. Letters as in solve_paper.h: r rank, b
 * bits, B budget, D distortion. alloc/solve/solve.h makes codecs of the result (METHOD_DP).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/bits/solve_paper.h"

struct dp_option {
    uint32_t cost; /* bits charged: r b, at least B_min */
    uint16_t r, b;
    double D; /* finite, not negative */
};

struct dp_problem {
    size_t n_heads;
    /* in any order; head h has options[first[h] .. first[h + 1] - 1], 1 to 65535 options */
    const struct dp_option *options;
    const size_t *first; /* [n_heads + 1] */
    uint64_t budget_bits;
};

struct dp_result {
    double D;           /* total, of the options chosen */
    uint64_t used_bits; /* their cost */
    double lower_bound; /* Lagrangian bound: no choice within the budget has a smaller D */
    uint64_t n_states;  /* states that the programme visited */
};

/**
 * dp_head_options() - every (r, b) of a head, with cost and distortion
 * @D:   [d / rank_step + 1, b_max - b_min + 1]: D(r, b) for r = 0, step, 2 step, ...; row 0 is r = 0,
 *       the same in all its columns
 * @ret: room for dp_options_max() of them
 *
 * Return: the number of options.
 */
size_t dp_head_options(const double *D, uint32_t d, const struct paper_options *o, struct dp_option *ret);

static inline size_t dp_options_max(uint32_t d, const struct paper_options *o)
{
    return (size_t) d / o->rank_step * (o->b_max - o->b_min + 1) + 1;
}

/* D(r, b) = sum_{i>r} w_i + q[b] sum_{i<=r} w_i for dp_head_options():
 * eq:drb-preview with @q [b_max + 1] for q(b). */
void dp_curve(const double *w, uint32_t d, const double *q, const struct paper_options *o, double *ret_D);

/**
 * dp_solve() - the optimum of a separable knapsack
 * @ret_choice: [n_heads] index of the chosen option within its head; untouched on failure
 *
 * Exact up to the rounding of sums: totals within 1e-12 of each other count as ties; the same input gives the
 * same choice.
 *
 * Return: 0; -ERANGE: even the cheapest options exceed the budget (only ret->used_bits is set: the smallest
 * possible); -EINVAL: a distortion negative or not finite, a head without options or with too many; -ENOMEM.
 */
int dp_solve(const struct dp_problem *p, uint32_t *ret_choice, struct dp_result *ret);
