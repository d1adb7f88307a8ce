/* One budget for the groups of layers of a model; see solve_groups.h. */
#include "alloc/solve/solve_groups.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_bands.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* A group without bits makes no table. */
#define SOLVE_GROUP_LEAST 0.01

uint32_t solve_group_share(uint32_t window)
{
    uint32_t share;

    if (window == 0 || window >= SOLVE_GROUP_PROMPT)
        return SOLVE_GROUP_WHOLE;

    share = (window * SOLVE_GROUP_WHOLE + SOLVE_GROUP_PROMPT / 2) / SOLVE_GROUP_PROMPT;
    return share > 0 ? share : 1;
}

void solve_group_deinit(struct solve_group *g)
{
    solve_pool_deinit(&g->pool);
    *g = (struct solve_group){0};
}

/* Numbers of the head-sides whose vectors differ. @S: memory for [d, d]. */
static double solve_group_count(const struct solver *v, double *S)
{
    uint32_t d = v->g->d;
    double numbers = 0;

    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        double trace = 0;

        solver_covariance(v, hs, S);
        for (uint32_t i = 0; i < d; i++)
            trace += S[(size_t) i * d + i];
        numbers += trace > 0 ? d : 0;
    }
    return numbers;
}

int solve_group_collect(const struct stats *s, const struct solve_options *o, struct solve_group *ret,
                        struct errmsg *e)
{
    _cleanup_(solver_deinit) struct solver v = {0};
    _cleanup_(freep) double *S = NULL;
    int r = solver_init(&v, s, o, e);

    *ret = (struct solve_group){0};
    if (r == 0)
        r = solve_bands_begin(&v, e);
    if (r < 0)
        return r;

    S = calloc((size_t) v.g->d * v.g->d, sizeof(*S));
    if (!S || solve_pool_fill(&ret->pool, &v, 3, o->floor_bpd, o->ceil_bpd) < 0) {
        solve_group_deinit(ret);
        return fail(e, -ENOMEM, "out of memory for the allocation");
    }

    ret->numbers = solve_group_count(&v, S);
    ret->coded = (double) ret->pool.n_groups * v.g->d;
    ret->share = SOLVE_GROUP_WHOLE;
    return 0;
}

/* The bands of all groups, one behind the other. A band costs its share of SOLVE_GROUP_WHOLE for each bit. */
static int solve_groups_join(const struct solve_group *groups, size_t n, struct solve_pool *ret)
{
    size_t n_bands = 0, n_heads = 0;

    for (size_t i = 0; i < n; i++) {
        n_bands += groups[i].pool.n_bands;
        n_heads += groups[i].pool.n_groups;
    }
    ret->distortion = calloc(n_bands + 1, BANDS_OPTIONS * sizeof(double));
    ret->coords = calloc(n_bands + 1, sizeof(*ret->coords));
    ret->group = calloc(n_bands + 1, sizeof(*ret->group));
    ret->bits = calloc(n_bands + 1, sizeof(*ret->bits));
    ret->floor = calloc(n_heads + 1, sizeof(*ret->floor));
    ret->ceil = calloc(n_heads + 1, sizeof(*ret->ceil));
    if (!ret->distortion || !ret->coords || !ret->group || !ret->bits || !ret->floor || !ret->ceil)
        return -ENOMEM;

    for (size_t i = 0; i < n; i++) {
        const struct solve_pool *p = &groups[i].pool;

        memcpy(ret->distortion + ret->n_bands * BANDS_OPTIONS, p->distortion,
               p->n_bands * BANDS_OPTIONS * sizeof(double));
        for (size_t b = 0; b < p->n_bands; b++) {
            assert(p->coords[b] == BAND_COORDS);
            ret->coords[ret->n_bands + b] = groups[i].share;
            ret->group[ret->n_bands + b] = p->group[b] + (uint32_t) ret->n_groups;
        }
        for (size_t h = 0; h < p->n_groups; h++) {
            ret->floor[ret->n_groups + h] = (p->floor[h] * groups[i].share + BAND_COORDS - 1) / BAND_COORDS;
            ret->ceil[ret->n_groups + h] = p->ceil[h] * groups[i].share / BAND_COORDS;
        }
        ret->n_bands += p->n_bands;
        ret->n_groups += p->n_groups;
    }

    return 0;
}

int solve_groups_divide(const struct solve_group *groups, size_t n, double bpd, double *ret_bpd,
                        struct errmsg *e)
{
    _cleanup_(solve_pool_deinit) struct solve_pool all = {0};
    struct bands_result result = {0};
    struct bands_problem problem;
    double numbers = 0;
    size_t at = 0;
    int r = solve_groups_join(groups, n, &all);

    if (r < 0)
        return fail(e, r, "out of memory for the allocation");

    for (size_t i = 0; i < n; i++)
        numbers += groups[i].numbers * groups[i].share / BAND_COORDS;
    problem = (struct bands_problem){
        .n_bands = all.n_bands,
        .distortion = all.distortion,
        .coords = all.coords,
        .group = all.group,
        .n_groups = all.n_groups,
        .floor_bits = all.floor,
        .ceil_bits = all.ceil,
        .budget_bits = (uint64_t) (bpd * numbers * (1 + 1e-12)), /* as in solve_allocate.c */
    };
    r = bands_solve(&problem, all.bits, &result);
    if (r == -ERANGE)
        return fail(e, r, "%g bits per number are below the floors: the smallest possible budget is %.4f",
                    bpd, (double) result.used_bits / numbers);
    if (r < 0)
        return fail(e, r, "the division of the budget failed: %s", strerror(-r));

    for (size_t i = 0; i < n; i++) {
        double bits = 0;

        for (size_t b = 0; b < groups[i].pool.n_bands; b++, at++)
            bits += (double) all.bits[at] * BAND_COORDS;
        ret_bpd[i] = bits / groups[i].coded;
        if (ret_bpd[i] < SOLVE_GROUP_LEAST)
            ret_bpd[i] = SOLVE_GROUP_LEAST;
    }

    return 0;
}
