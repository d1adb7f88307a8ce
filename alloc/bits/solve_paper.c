/*
 * The paper's allocator exactly as stated, for comparison and reproduction; see solve_paper.h. Equation
 * labels are those of the paper's source.
 */
#include "alloc/bits/solve_paper.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/table/geometry.h"
#include "base/cleanup.h"

double paper_bennett(double b)
{
    return exp2(-2.0 * b) / 12.0; /* eq:q and eq:q-normalized: q(b) = 1/12 * 2^(-2b) */
}

void paper_options_default(struct paper_options *o, double bpd)
{
    *o = (struct paper_options){
        .bpd = bpd,
        .B_min = 8,
        .eta = 0.3, /* eq:c2-update */
        .rounds = 5,
        .rank_step = 2,
        .b_min = 2,
        .b_max = 8,
    };
}

/* b = round(B / r), half to even, clipped to [b_min, b_max] (sec:c1, and "Solver" after thm:c1-kkt) */
static uint32_t solve_paper_width_for(double B, uint32_t r, const struct paper_options *o)
{
    double b = rint(B / r); /* the default rounding mode is half to even */

    return (uint32_t) fmin(fmax(b, o->b_min), o->b_max);
}

struct paper_choice paper_c1(const double *w, uint32_t d, double B, const struct paper_options *o)
{
    double tail[GEOMETRY_DIM_MAX + 1], head = 0; /* tail[r] = sum_{i>r} w_i, head = sum_{i<=r} w_i */
    double r_max = fmin(d, floor(B / o->b_min)); /* sec:c1: r in {2, 4, ..., min(d, floor(B / b_min))} */
    struct paper_choice best;

    assert(d <= GEOMETRY_DIM_MAX && o->rank_step > 0 && o->b_min > 0);
    tail[d] = 0;
    for (uint32_t i = d; i-- > 0;)
        tail[i] = tail[i + 1] + w[i];

    best = (struct paper_choice){.r = 0, .b = 0, .D = tail[0]}; /* no rank fits: D is projection loss alone */
    for (uint32_t r = o->rank_step; r <= r_max; r += o->rank_step) {
        uint32_t b = solve_paper_width_for(B, r, o);
        double D;

        for (uint32_t i = r - o->rank_step; i < r; i++)
            head += w[i];
        D = tail[r] + paper_bennett(b) * head; /* eq:drb-preview: projection loss + quantisation loss */
        if (best.r == 0 || D < best.D)         /* ties stay with the smallest r */
            best = (struct paper_choice){r, b, D};
    }
    return best;
}

/* One round of eq:c2-update for all heads, then the renormalisation to B_tot. */
static void solve_paper_c2_round(const struct paper_choice *choice, uint32_t n_heads, double B_tot,
                                 const struct paper_options *o, double *B)
{
    double B_bar = B_tot / n_heads, D_bar = 0, sum = 0;

    for (uint32_t h = 0; h < n_heads; h++)
        D_bar += choice[h].D / n_heads;
    if (!(D_bar > 0)) /* no head has distortion: the update would divide by 0, and budgets stay */
        return;

    for (uint32_t h = 0; h < n_heads; h++) {
        /* eq:c2-update: B <- max(B_min, B + eta B_bar (sqrt(D / D_bar) - 1)) */
        B[h] = fmax(o->B_min, B[h] + o->eta * B_bar * (sqrt(choice[h].D / D_bar) - 1.0));
        sum += B[h];
    }

    /* the paper's order: renormalising after the maximum may leave a head below B_min */
    for (uint32_t h = 0; h < n_heads; h++)
        B[h] *= B_tot / sum;
}

static void solve_paper_c1_all(const double *w, uint32_t n_heads, uint32_t d, const double *B,
                               const struct paper_options *o, struct paper_choice *ret)
{
    for (uint32_t h = 0; h < n_heads; h++)
        ret[h] = paper_c1(w + (size_t) h * d, d, B[h], o);
}

int paper_c2(const double *w, uint32_t n_heads, uint32_t d, const struct paper_options *o,
             struct paper_choice *ret_choice, double *ret_B)
{
    _cleanup_(freep) double *B = NULL;
    double B_tot = o->bpd * d * n_heads; /* sec:method: B_tot = L H d bpd */

    B = calloc((size_t) n_heads + 1, sizeof(*B));
    if (!B)
        return -ENOMEM;

    for (uint32_t h = 0; h < n_heads; h++)
        B[h] = o->bpd * d;                                 /* alg:kvrobin, line 3 */
    for (uint32_t round = 0; round < o->rounds; round++) { /* line 4 */
        solve_paper_c1_all(w, n_heads, d, B, o, ret_choice);
        solve_paper_c2_round(ret_choice, n_heads, B_tot, o, B);
    }

    solve_paper_c1_all(w, n_heads, d, B, o, ret_choice); /* (r, b) for the budgets of the last round */
    for (uint32_t h = 0; ret_B && h < n_heads; h++)
        ret_B[h] = B[h];
    return 0;
}
