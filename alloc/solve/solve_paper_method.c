/*
 * METHOD_PAPER_MSE and METHOD_PAPER_KL (DESIGN 3.4): the paper's codecs on our statistics. Keys take C1
 * inside C2, values C1 alone with uniform budgets (section "Joint K+V compression" of the paper). Each head
 * has one rank, one width, one rotation over all retained coordinates, and one scale.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_paper.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_spectra.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

#define SEARCH_ROUNDS 40

/* Search for the nominal budget. */
struct paper_method_search {
    const struct spectra *p;
    struct paper_choice *choice; /* [n_heads] of the current trial */
    struct paper_choice *best;   /* [n_heads] of the best trial so far */
};

static void paper_method_search_deinit(struct paper_method_search *x)
{
    free(x->choice);
}

static int paper_method_search_init(struct paper_method_search *x, const struct spectra *p)
{
    *x = (struct paper_method_search){.p = p, .choice = calloc((size_t) p->n_heads * 2, sizeof(*x->choice))};
    x->best = x->choice ? x->choice + p->n_heads : NULL;
    return x->choice ? 0 : -ENOMEM;
}

/* Bits per token that the paper charges: sum of r b, without our padding. */
static double paper_method_charged_bits(const struct paper_choice *c, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double) c[i].r * c[i].b;
    return sum;
}

static int paper_method_allocate_at(struct paper_method_search *x, const struct paper_options *options,
                                    enum side side, double nominal)
{
    const struct spectra *p = x->p;
    struct paper_options o = *options;

    o.bpd = nominal;
    if (side == SIDE_K)
        return paper_c2(p->w, p->n_heads, p->d, &o, x->choice, NULL);

    for (uint32_t i = 0; i < p->n_heads; i++)
        x->choice[i] = paper_c1(p->w + (size_t) i * p->d, p->d, nominal * p->d, &o);
    return 0;
}

/*
 * b = round(B / r) may spend more than B. For a comparison of methods at equal cost, this searches the
 * nominal budget whose charged bits come closest to the target from below.
 */
static int paper_method_search_budget(struct paper_method_search *x, const struct paper_options *o,
                                      enum side side, double target, struct errmsg *e)
{
    uint32_t n_heads = x->p->n_heads;
    double numbers = (double) n_heads * x->p->d, low = 0, high = 2 * target, most = -1, least = INFINITY;

    for (int i = 0; i < SEARCH_ROUNDS; i++) {
        double nominal = i == 0 ? target : (low + high) / 2, charged;
        int r = paper_method_allocate_at(x, o, side, nominal);

        if (r < 0)
            return fail(e, r, "out of memory for the paper's allocator");

        charged = paper_method_charged_bits(x->choice, n_heads) / numbers;
        if (charged > 0)
            least = fmin(least, charged);
        if (charged > target * (1 + 1e-12)) {
            high = nominal;
            continue;
        }

        low = nominal;
        if (charged > most) {
            most = charged;
            memcpy(x->best, x->choice, n_heads * sizeof(*x->best));
        }
    }

    if (most <= 0)
        return fail(e, -ERANGE,
                    "%g bits per number for %c are too few for the paper's rank %u at %u bits: the smallest "
                    "possible budget is about %.4f",
                    target, side == SIDE_K ? 'K' : 'V', o->rank_step, o->b_min,
                    isfinite(least) ? least : (double) o->rank_step * o->b_min / x->p->d);

    return 0;
}

static int paper_method_solve_side(struct solver *v, enum side side, double bpd, struct errmsg *e)
{
    _cleanup_(spectra_deinit) struct spectra p = {0};
    _cleanup_(paper_method_search_deinit) struct paper_method_search x = {0};
    int r = spectra_init(&p, v->n_heads / 2, v->g->d);

    if (r == 0)
        r = paper_method_search_init(&x, &p);
    if (r != 0)
        return fail(e, r, "out of memory for the paper's allocator");

    solver_progress(v, side == SIDE_K ? "keys" : "values", side == SIDE_K ? 0.0 : 0.5);
    r = spectra_fill(v, side, &p, e);
    if (r < 0)
        return r;

    r = paper_method_search_budget(&x, &v->o.paper, side, bpd, e);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < p.n_heads; i++) {
        r = spectra_make_head(v, i * 2 + (uint32_t) side, p.lambda + (size_t) i * p.d,
                              p.basis + (size_t) i * p.d * p.d, x.best[i].r, x.best[i].b);
        if (r < 0)
            return solver_fail(i / v->g->n_kv_heads, i % v->g->n_kv_heads, side, r, e);

        v->estimated += x.best[i].D;
    }

    return 0;
}

int solve_paper_method(struct solver *v, struct errmsg *e)
{
    bool apart = v->o.k_bpd > 0;
    int r = paper_method_solve_side(v, SIDE_K, apart ? v->o.k_bpd : v->o.bpd, e);

    if (r < 0)
        return r;

    return paper_method_solve_side(v, SIDE_V, apart ? v->o.v_bpd : v->o.bpd, e);
}
