/*
 * METHOD_DP (DESIGN 3.4): the paper's pipeline (one rotation, one scale, one width per head) with its
 * exact solver in place of C2. For keys it minimises the sum of D(r, b) over heads within one budget
 * for all of them. Each head of values takes the best (r, b) within the same budget, the paper's
 * rule for V (appendix "What we do on V").
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_dp.h"
#include "alloc/solve/solve_dp_curve.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_spectra.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* The options of one side's heads, one after another. */
struct candidates {
    const struct spectra *p;
    size_t most; /* of one head */
    struct dp_option *options;
    size_t *first;    /* [n_heads + 1] */
    uint32_t *choice; /* [n_heads] */
};

static void dp_method_candidates_deinit(struct candidates *c)
{
    free(c->options);
    free(c->first);
    free(c->choice);
}

static int dp_method_candidates_init(struct candidates *c, const struct paper_options *o,
                                     const struct spectra *p)
{
    c->p = p;
    c->most = dp_options_max(p->d, o);
    c->options = calloc(p->n_heads * c->most, sizeof(*c->options));
    c->first = calloc((size_t) p->n_heads + 1, sizeof(*c->first));
    c->choice = calloc(p->n_heads, sizeof(*c->choice));
    return c->options && c->first && c->choice ? 0 : -ENOMEM;
}

/* The options of one head, at its own place; c->first[head + 1] is their number. */
static int dp_method_candidates_of_head(struct solver *v, uint32_t hs, void *ctx)
{
    struct candidates *c = ctx;
    const struct paper_options *o = &v->o.paper;
    size_t n = (size_t) (c->p->d / o->rank_step + 1) * (o->b_max - o->b_min + 1);
    _cleanup_(freep) double *D = calloc(n, sizeof(*D));
    uint32_t head = hs / 2;
    int r = D ? dp_head_curve(v, (enum side)(hs % 2), c->p, head, D) : -ENOMEM;

    if (r == 0)
        c->first[head + 1] = dp_head_options(D, c->p->d, o, c->options + head * c->most);
    return r;
}

static int dp_method_candidates_fill(struct solver *v, enum side side, struct candidates *c, struct errmsg *e)
{
    int r = solver_each_side(v, side == SIDE_K ? "keys" : "values", 1u << side, dp_method_candidates_of_head,
                             c, e);

    if (r < 0)
        return r;

    for (uint32_t head = 0; head < c->p->n_heads; head++) {
        size_t n = c->first[head + 1];

        memmove(c->options + c->first[head], c->options + head * c->most, n * sizeof(*c->options));
        c->first[head + 1] = c->first[head] + n;
    }
    return 0;
}

/* One budget for all keys together. Values have one budget per head, so that no bit moves between heads. */
static int dp_method_choose(enum side side, uint32_t n_heads, double bits_per_head, struct candidates *c,
                            struct dp_result *ret)
{
    double leeway = 1 + 1e-12; /* rounding must not take one bit from 2 bpd over 90 heads */

    if (side == SIDE_K)
        return dp_solve(&(struct dp_problem){n_heads, c->options, c->first,
                                             (uint64_t) (bits_per_head * n_heads * leeway)},
                        c->choice, ret);

    *ret = (struct dp_result){.D = 0};
    for (uint32_t i = 0; i < n_heads; i++) {
        const size_t first[2] = {0, c->first[i + 1] - c->first[i]};
        struct dp_result one = {.D = 0};
        int r;

        r = dp_solve(
            &(struct dp_problem){1, c->options + c->first[i], first, (uint64_t) (bits_per_head * leeway)},
            c->choice + i, &one);
        if (r == -ERANGE) /* the smallest budget is the same for every head: B_min */
            ret->used_bits = one.used_bits * n_heads;
        if (r < 0)
            return r;

        ret->D += one.D;
        ret->used_bits += one.used_bits;
    }

    return 0;
}

static int dp_method_solve_side(struct solver *v, enum side side, double bpd, struct errmsg *e)
{
    _cleanup_(spectra_deinit) struct spectra p = {0};
    _cleanup_(dp_method_candidates_deinit) struct candidates c = {0};
    uint32_t n_heads = v->n_heads / 2, d = v->g->d;
    struct dp_result result = {.D = 0};
    int r = spectra_init(&p, n_heads, d);

    if (r == 0)
        r = dp_method_candidates_init(&c, &v->o.paper, &p);
    if (r != 0)
        return fail(e, r, "out of memory for the dynamic programme");

    r = spectra_fill(v, side, &p, e);
    if (r < 0)
        return r;

    r = dp_method_candidates_fill(v, side, &c, e);
    if (r < 0)
        return r;

    r = dp_method_choose(side, n_heads, bpd * d, &c, &result);
    if (r == -ERANGE)
        return fail(e, r,
                    "%g bits per number for %c are below the least budget of a head: the smallest possible "
                    "budget is %.4f",
                    bpd, side == SIDE_K ? 'K' : 'V', (double) result.used_bits / ((double) n_heads * d));
    if (r < 0)
        return fail(e, r, "the dynamic programme failed: %s", strerror(-r));

    for (uint32_t i = 0; i < n_heads; i++) {
        const struct dp_option *o = &c.options[c.first[i] + c.choice[i]];

        r = spectra_make_head(v, i * 2 + (uint32_t) side, p.lambda + (size_t) i * d,
                              p.basis + (size_t) i * d * d, o->r, o->b);
        if (r < 0)
            return solver_fail(i / v->g->n_kv_heads, i % v->g->n_kv_heads, side, r, e);
    }

    v->estimated += result.D;
    return 0;
}

int solve_dp_method(struct solver *v, struct errmsg *e)
{
    bool apart = v->o.k_bpd > 0;
    int r = dp_method_solve_side(v, SIDE_K, apart ? v->o.k_bpd : v->o.bpd, e);

    if (r < 0)
        return r;

    return dp_method_solve_side(v, SIDE_V, apart ? v->o.v_bpd : v->o.bpd, e);
}
