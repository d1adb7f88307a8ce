/*
 * METHOD_BANDS: one knapsack over the bands of all head-sides, and the order in which prediction, bits and
 * levels are fixed (DESIGN 3.2). See solve_internal.h.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_bands.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* ---- bits ---- */

void solve_pool_deinit(struct solve_pool *p)
{
    free(p->distortion);
    free(p->coords);
    free(p->group);
    free(p->floor);
    free(p->ceil);
    free(p->bits);
    free(p->head_side);
}

static int solve_pool_init(struct solve_pool *p, size_t n_heads)
{
    size_t n = n_heads * TABLE_HALF_TILES_MAX;

    p->distortion = calloc(n * (TABLE_BITS_MAX + 1), sizeof(double));
    p->coords = calloc(n, sizeof(*p->coords));
    p->group = calloc(n, sizeof(*p->group));
    p->bits = calloc(n, sizeof(*p->bits));
    p->floor = calloc(n_heads, sizeof(*p->floor));
    p->ceil = calloc(n_heads, sizeof(*p->ceil));
    p->head_side = calloc(n_heads, sizeof(*p->head_side));
    return p->distortion && p->coords && p->group && p->bits && p->floor && p->ceil && p->head_side ? 0
                                                                                                    : -ENOMEM;
}

/* Adds the bands of a head-side. A head-side of small rank may have fewer bits than its
 * floor: the floor is lowered to them. */
static void solve_pool_add(struct solve_pool *p, const struct solver *v, uint32_t head_side, double floor_bpd,
                           double ceil_bpd)
{
    const struct head *h = &v->heads[head_side];
    uint64_t most = (uint64_t) h->t.n_bands * BAND_COORDS * TABLE_BITS_MAX, floor, ceil;

    floor = (uint64_t) (floor_bpd * v->g->d + 0.5);
    ceil = (uint64_t) (ceil_bpd * v->g->d + 0.5);
    if (ceil_bpd >= TABLE_BITS_MAX) /* no ceiling: padding of a short band may exceed it */
        ceil = most;
    p->floor[p->n_groups] = floor < most ? floor : most;
    p->ceil[p->n_groups] = ceil;
    for (uint32_t b = 0; b < h->t.n_bands; b++) {
        memcpy(p->distortion + p->n_bands * (TABLE_BITS_MAX + 1), h->curve[b], sizeof(h->curve[b]));
        p->coords[p->n_bands] = BAND_COORDS;
        p->group[p->n_bands++] = (uint32_t) p->n_groups;
    }

    p->head_side[p->n_groups++] = head_side;
}

static void solve_allocate_take_bits(struct solve_pool *p, struct solver *v)
{
    const uint8_t *bits = p->bits;

    for (size_t i = 0; i < p->n_groups; i++) {
        struct head *h = &v->heads[p->head_side[i]];

        memset(h->bits, 0, sizeof(h->bits));
        memcpy(h->bits, bits, h->t.n_bands);
        bits += h->t.n_bands;
    }
}

/* A budget over the coded head-sides of the sides in @sides (bit 0: K, bit 1: V). */
struct solve_allocate_problem {
    unsigned sides;
    double bpd, floor_bpd, ceil_bpd;
};

int solve_pool_fill(struct solve_pool *p, const struct solver *v, unsigned sides, double floor_bpd,
                    double ceil_bpd)
{
    int r = solve_pool_init(p, v->n_heads);

    for (uint32_t hs = 0; r == 0 && hs < v->n_heads; hs++)
        if ((sides >> hs % 2 & 1) && solver_codes(v, hs / (2 * v->g->n_kv_heads), (enum side)(hs % 2)))
            solve_pool_add(p, v, hs, floor_bpd, ceil_bpd);
    return r;
}

/* Solves @x; p->bits has the answer. @ret_numbers: of the head-sides, per token; also set on failure. */
static int solve_allocate_run(const struct solver *v, const struct solve_allocate_problem *x,
                              struct solve_pool *p, struct bands_result *ret, double *ret_numbers)
{
    struct bands_problem problem;
    int r = solve_pool_fill(p, v, x->sides, x->floor_bpd, x->ceil_bpd);

    *ret_numbers = (double) p->n_groups * v->g->d;
    if (r < 0)
        return r;

    problem = (struct bands_problem){
        .n_bands = p->n_bands,
        .distortion = p->distortion,
        .coords = p->coords,
        .group = p->group,
        .n_groups = p->n_groups,
        .floor_bits = p->floor,
        .ceil_bits = p->ceil,
        /* the factor prevents rounding from taking one bit from a budget of 2 bpd over 90 heads */
        .budget_bits = (uint64_t) (x->bpd * *ret_numbers * (1 + 1e-12)),
    };
    return bands_solve(&problem, p->bits, ret);
}

static int solve_allocate_budget(struct solver *v, unsigned sides, double bpd, const char *what,
                                 struct errmsg *e)
{
    _cleanup_(solve_pool_deinit) struct solve_pool p = {0};
    const struct solve_allocate_problem x = {sides, bpd, v->o.floor_bpd, v->o.ceil_bpd};
    struct bands_result result = {0};
    double numbers;
    int r = solve_allocate_run(v, &x, &p, &result, &numbers);

    if (r == -ERANGE)
        return fail(e, -ERANGE,
                    "%g bits per number for %s are below the floors: the smallest possible budget is %.4f",
                    bpd, what, (double) result.used_bits / numbers);
    if (r == -ENOMEM)
        return fail(e, r, "out of memory for the allocation");
    if (r < 0)
        return fail(e, r, "the allocation of bits failed: %s", strerror(-r));

    solve_allocate_take_bits(&p, v);
    v->estimated += result.distortion;
    return 0;
}

/* Distortion at a budget, by the curves; 0: it cannot be met. Return: 0; -ENOMEM. */
static int solve_allocate_try(const struct solver *v, double bpd, double ceil_bpd, double *ret)
{
    _cleanup_(solve_pool_deinit) struct solve_pool p = {0};
    const struct solve_allocate_problem x = {.sides = 3, .bpd = bpd, .ceil_bpd = ceil_bpd};
    struct bands_result result = {0};
    double numbers;
    int r = solve_allocate_run(v, &x, &p, &result, &numbers);

    *ret = r == 0 ? result.distortion : 0;
    return r == -ENOMEM ? r : 0;
}

static int solve_allocate_points(struct solver *v, struct errmsg *e)
{
    static const double budgets[SOLVE_POINTS] = {1.5, 2, 3, 4};

    for (size_t i = 0; i < SOLVE_POINTS; i++) {
        struct solve_point *point = &v->points[i];

        point->bpd = budgets[i];
        if (solve_allocate_try(v, budgets[i], TABLE_BITS_MAX, &point->distortion) < 0 ||
            solve_allocate_try(v, budgets[i], budgets[i], &point->equal) < 0)
            return fail(e, -ENOMEM, "out of memory for the allocation");
    }

    return 0;
}

int solve_allocate(struct solver *v, struct errmsg *e)
{
    int r;

    solver_progress(v, "bits", 0);
    v->estimated = 0;
    if (v->o.k_bpd > 0) {
        r = solve_allocate_budget(v, 1, v->o.k_bpd, "K", e);
        if (r < 0)
            return r;

        return solve_allocate_budget(v, 2, v->o.v_bpd, "V", e);
    }
    return solve_allocate_budget(v, 3, v->o.bpd, "K and V", e);
}

/* ---- method ---- */

/*
 * Solve without prediction; fit P and solve, twice; freeze bits; fit levels; refit P, mu_V, basis and scales.
 * K's levels come first, because P is fitted to K's codes as they will be stored, and V's last, because they
 * are fitted to the coordinates of the final basis. Decoders are fitted last, to the final codes.
 */
int solve_bands_begin(struct solver *v, struct errmsg *e)
{
    bool predicts = v->o.v_from != PREDICT_NONE;
    int r = solve_fit_sides(v, 1u << SIDE_K | 1u << SIDE_V, e);

    if (r == 0)
        r = solve_allocate(v, e);
    for (int round = 0; r == 0 && predicts && round < 2; round++) {
        r = solve_fit_residuals(v, e);
        if (r == 0)
            r = solve_allocate(v, e);
    }

    return r;
}

int solve_bands_method(struct solver *v, struct errmsg *e)
{
    int r = solve_bands_begin(v, e);

    if (r == 0)
        r = solve_allocate_points(v, e);
    if (r == 0)
        r = solve_finish_side(v, SIDE_K, e);
    if (r < 0)
        return r;

    solve_round_encoders(v, SIDE_K);
    r = solve_store_keys(v, e);
    if (r == 0)
        r = solve_finish_side(v, SIDE_V, e);
    if (r < 0)
        return r;

    solve_round_encoders(v, SIDE_V);
    return v->o.decoder == DECODER_LEAST_SQUARES ? solve_fit_decoders(v, e) : 0;
}
