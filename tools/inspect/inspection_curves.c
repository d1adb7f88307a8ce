/* Rate-distortion curves of the methods, and harm head by head: tables are solved and judged on the sampled
 * vectors. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/metric.h"
#include "alloc/table_account.h"
#include "base/cleanup.h"
#include "tools/inspect/inspection.h"
#include "tools/command/progress.h"

static const char *const method_titles[] = {"bands", "bands, equal budgets", "dp", "paper-kl", "paper-mse"};

const char *inspect_method_name(enum inspect_method m)
{
    return method_titles[m];
}

/* What harm is counted in, whoever made the table. */
static void inspection_curves_judge_options(const struct inspection *x, struct solve_options *ret)
{
    solve_options_for(ret, METHOD_BANDS, 1);
    ret->metric = x->metric;
    ret->v_from =
        PREDICT_NONE; /* these say how to solve: not asked for here, and they have conditions of their own */
    ret->decoder = DECODER_INVERSE;
    ret->fit_levels = false;
}

/* The solver's options of a method: what `kvcobra solve --method` would take by default on these statistics.
 */
static void inspection_curves_method_options(const struct inspection *x, enum inspect_method m, double bpd,
                                             struct solve_options *ret)
{
    static const enum method methods[] = {METHOD_BANDS, METHOD_BANDS, METHOD_DP, METHOD_PAPER_KL,
                                          METHOD_PAPER_MSE};

    solve_options_for(ret, methods[m], bpd);
    if (methods[m] == METHOD_BANDS) {
        ret->metric = x->metric;
        if (x->has_solved && x->solved.method == METHOD_BANDS) {
            ret->v_from = x->solved.v_from;
            ret->decoder = x->solved.decoder;
        } else if (stats_samples(x->stats) < (size_t) 4 * x->g->d) { /* too few to fit either to */
            ret->v_from = PREDICT_NONE;
            ret->decoder = DECODER_INVERSE;
        }
    }
    if (m == CURVE_OF_EQUAL)
        ret->ceil_bpd = bpd; /* the mean as ceiling: nobody can have more, so nobody has less */
    if (m == CURVE_OF_DP && metric_available(x->stats, METRIC_QUERY, NULL) < 0)
        ret->metric = METRIC_MSE;
}

/* Solves and judges. @ret_harm [n_hs]. */
static int inspection_curves_solve_and_judge(const struct inspection *x, const struct solve_options *o,
                                             double *ret_harm, struct solve_report *ret_report,
                                             struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct solve_options judge;
    size_t n_bytes;
    int r = solve_table(x->stats, o, &bytes, &n_bytes, ret_report, e);

    if (r == 0)
        r = table_parse(bytes, n_bytes, &t, e);
    if (r < 0)
        return r;
    inspection_curves_judge_options(x, &judge);
    return solve_distortion_heads(x->stats, t, &judge, ret_harm, e);
}

/* Out of memory ends the inspection; any other refusal of a method is a fact about it, and shown. */
static int inspection_curves_solve_point(const struct inspection *x, const struct solve_options *o,
                                         struct rate_point *point, double *ret_harm, struct errmsg *e)
{
    struct solve_report report = {0};
    struct errmsg why = {""};
    int r = inspection_curves_solve_and_judge(x, o, ret_harm, &report, &why);

    if (r == -ENOMEM)
        return fail(e, r, "%s", why.text);
    if (r < 0) {
        (void) snprintf(point->why, sizeof(point->why), "%s", why.text);
        return 0;
    }
    point->solved = true;
    point->bpd = o->method == METHOD_BANDS ? report.bpd_code : report.bpd_nominal;
    point->bpd_stored = report.bpd_code;
    point->k_bpd = report.k_bpd;
    point->v_bpd = report.v_bpd;
    point->harm[SIDE_K] = point->harm[SIDE_V] = 0;
    for (uint32_t hs = 0; hs < head_side_count(x->g); hs++)
        point->harm[hs % 2] += ret_harm[hs];
    return 0;
}

/* The budget at which heads are compared: what the table is charged, or without one the middle of those asked
 * for. */
static double inspection_curves_compared_budget(const struct inspection *x)
{
    const struct inspect_request *q = &x->request;

    return x->table ? inspection_charged(x) : q->n_budgets > 0 ? q->budgets[(q->n_budgets - 1) / 2] : 0;
}

double inspection_charged(const struct inspection *x)
{
    struct table_account a;

    if (!x->has_solved || x->solved.method == METHOD_BANDS)
        return x->table->bpd_code;
    table_account(x->table, &a);
    return a.nominal;
}

/* x->harm of the table; without a table the curves' bands leave it. */
static int inspection_curves_judge_table(struct inspection *x, struct errmsg *e)
{
    struct solve_options judge;

    inspection_curves_judge_options(x, &judge);
    return solve_distortion_heads(x->stats, x->table, &judge, x->harm, e);
}

/*
 * The table's own recipe without moving bits between heads: the mean as ceiling of bands, the paper's C1
 * without C2. The programme that replaces C2 has no such form: C1 stands for it. Bands as they come for a
 * table that does not say.
 */
static void inspection_curves_equal_options(const struct inspection *x, struct solve_options *ret)
{
    if (!x->has_solved) {
        inspection_curves_method_options(x, CURVE_OF_EQUAL, x->harm_budget, ret);
        return;
    }
    *ret = x->solved;
    ret->k_bpd = ret->v_bpd = 0;
    ret->bpd = x->harm_budget;
    if (ret->method == METHOD_BANDS) {
        ret->floor_bpd = 0;
        ret->ceil_bpd = ret->bpd;
        return;
    }
    if (ret->method == METHOD_DP)
        solve_options_for(ret, ret->metric == METRIC_MSE ? METHOD_PAPER_MSE : METHOD_PAPER_KL,
                          x->harm_budget);
    ret->paper.eta = 0;
}

static int inspection_curves_judge_equal(struct inspection *x, struct errmsg *e)
{
    struct rate_point point = {.method = CURVE_OF_EQUAL, .budget = x->harm_budget};
    struct solve_options o;
    int r;

    inspection_curves_equal_options(x, &o);
    r = inspection_curves_solve_point(x, &o, &point, x->harm_equal, e);
    if (r == 0 && !point.solved)
        (void) snprintf(x->unavailable[PART_HARM], ERRMSG_BYTES, "%s", point.why);
    return r;
}

static int inspection_curves_fill_points(struct inspection *x, struct progress *p, struct errmsg *e)
{
    uint32_t n_hs = head_side_count(x->g);
    _cleanup_(freep) double *harm = calloc(n_hs, sizeof(*harm));
    int r = harm ? 0 : fail(e, -ENOMEM, "out of memory for the curves");

    for (size_t i = 0; r == 0 && i < x->n_points; i++) {
        struct rate_point *point = &x->points[i];
        struct solve_options o;
        bool compared;

        progress_update(p, (double) i / (double) x->n_points);
        point->method = (enum inspect_method)(i % INSPECT_METHODS);
        point->budget = x->request.budgets[i / INSPECT_METHODS];
        compared = point->budget == x->harm_budget && !x->table;
        inspection_curves_method_options(x, point->method, point->budget, &o);
        r = inspection_curves_solve_point(x, &o, point, harm, e);
        if (r == 0 && compared && point->method == CURVE_OF_BANDS)
            memcpy(x->harm, harm, n_hs * sizeof(*harm));
        if (r == 0 && compared && point->method == CURVE_OF_EQUAL)
            memcpy(x->harm_equal, harm, n_hs * sizeof(*harm));
        if (r == 0 && compared && point->method <= CURVE_OF_EQUAL && !point->solved)
            (void) snprintf(x->unavailable[PART_HARM], ERRMSG_BYTES, "%s", point->why);
    }
    return r;
}

int inspection_fill_curves(struct inspection *x, struct progress *p, struct errmsg *e)
{
    uint32_t n_hs = head_side_count(x->g);
    int r = 0;

    progress_rename(p, "solving for curves");
    x->n_points = x->request.n_budgets * INSPECT_METHODS;
    x->points = calloc(x->n_points > 0 ? x->n_points : 1, sizeof(*x->points));
    x->harm = calloc(2 * n_hs, sizeof(*x->harm));
    if (!x->points || !x->harm)
        return fail(e, -ENOMEM, "out of memory for the curves");
    x->harm_equal = x->harm + n_hs;
    x->harm_budget = inspection_curves_compared_budget(x);
    if (x->n_points == 0) {
        (void) snprintf(x->unavailable[PART_CURVES], ERRMSG_BYTES,
                        "no budgets were asked for: --budgets 1,2,3,4 does");
        if (!x->table)
            (void) snprintf(x->unavailable[PART_HARM], ERRMSG_BYTES,
                            "no budgets were asked for: --budgets 1,2,3,4 does");
    }
    if (x->table) {
        r = inspection_curves_judge_table(x, e);
        if (r == 0)
            r = inspection_curves_judge_equal(x, e);
    }
    return r < 0 ? r : inspection_curves_fill_points(x, p, e);
}
