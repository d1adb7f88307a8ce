/* Rate-distortion curves of the methods, and the distortion of each head: tables are solved, and measured on
 * the sampled vectors. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/metric.h"
#include "alloc/table/table_account.h"
#include "base/cleanup.h"
#include "tools/command/progress.h"
#include "tools/inspect/inspection.h"

static const char *const method_titles[] = {"bands", "bands, equal budgets", "dp", "paper-kl", "paper-mse"};

const char *inspect_method_name(enum inspect_method m)
{
    return method_titles[m];
}

/* The options of every measurement, the same for all tables. */
static void inspection_curves_measure_options(const struct inspection *x, struct solve_options *ret)
{
    solve_options_for(ret, METHOD_BANDS, 1);
    ret->metric = x->metric;
    ret->v_from = PREDICT_NONE; /* options of solving, not of measuring */
    ret->decoder = DECODER_INVERSE;
    ret->fit_levels = false;
}

/* The solver's options of a method: the defaults of `kvcobra solve --method` for these statistics. */
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
        } else if (stats_samples(x->stats) < (size_t) 4 * x->g->d) { /* too few samples to fit either */
            ret->v_from = PREDICT_NONE;
            ret->decoder = DECODER_INVERSE;
        }
    }

    if (m == CURVE_OF_EQUAL)
        ret->ceil_bpd = bpd; /* with the mean as ceiling, every head-side gets the mean */
    if (m == CURVE_OF_DP && metric_available(x->stats, METRIC_QUERY, NULL) < 0)
        ret->metric = METRIC_MSE;
}

/* Solves and measures. @ret_distortion [n_hs]. */
static int inspection_curves_solve_and_measure(const struct inspection *x, const struct solve_options *o,
                                               double *ret_distortion, struct solve_report *ret_report,
                                               struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct solve_options options;
    size_t n_bytes;
    int r = solve_table(x->stats, o, &bytes, &n_bytes, ret_report, e);

    if (r < 0)
        return r;

    r = table_parse(bytes, n_bytes, &t, e);
    if (r < 0)
        return r;

    inspection_curves_measure_options(x, &options);
    return solve_distortion_heads(x->stats, t, &options, ret_distortion, e);
}

/* Running out of memory ends the inspection; any other failure of a method is shown as its result. */
static int inspection_curves_solve_point(const struct inspection *x, const struct solve_options *o,
                                         struct rate_point *point, double *ret_distortion, struct errmsg *e)
{
    struct solve_report report = {0};
    struct errmsg why = {""};
    int r = inspection_curves_solve_and_measure(x, o, ret_distortion, &report, &why);

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
    point->distortion[SIDE_K] = point->distortion[SIDE_V] = 0;
    for (uint32_t hs = 0; hs < head_side_count(x->g); hs++)
        point->distortion[hs % 2] += ret_distortion[hs];
    return 0;
}

/* The budget at which heads are compared: the table's, or without a table the middle one of the request. */
static double inspection_curves_compared_budget(const struct inspection *x)
{
    const struct inspect_request *q = &x->request;

    if (x->table)
        return inspection_charged(x);

    return q->n_budgets > 0 ? q->budgets[(q->n_budgets - 1) / 2] : 0;
}

double inspection_charged(const struct inspection *x)
{
    struct table_account a;

    if (!x->has_solved || x->solved.method == METHOD_BANDS)
        return x->table->bpd_code;

    table_account(x->table, &a);
    return a.nominal;
}

/* Sets x->distortion from the table. Without a table, the curve of bands sets it. */
static int inspection_curves_measure_table(struct inspection *x, struct errmsg *e)
{
    struct solve_options options;

    inspection_curves_measure_options(x, &options);
    return solve_distortion_heads(x->stats, x->table, &options, x->distortion, e);
}

/*
 * The options that the table was solved with, without moving bits between heads: the mean as ceiling of
 * bands, the paper's C1 without C2. Method dp has no such form; C1 is used for it. Default bands for a table
 * without these options in its provenance.
 */
static void inspection_curves_equal_options(const struct inspection *x, struct solve_options *ret)
{
    if (!x->has_solved) {
        inspection_curves_method_options(x, CURVE_OF_EQUAL, x->distortion_budget, ret);
        return;
    }

    *ret = x->solved;
    ret->k_bpd = ret->v_bpd = 0;
    ret->bpd = x->distortion_budget;
    if (ret->method == METHOD_BANDS) {
        ret->floor_bpd = 0;
        ret->ceil_bpd = ret->bpd;
        return;
    }

    if (ret->method == METHOD_DP)
        solve_options_for(ret, ret->metric == METRIC_MSE ? METHOD_PAPER_MSE : METHOD_PAPER_KL,
                          x->distortion_budget);
    ret->paper.eta = 0;
}

static int inspection_curves_measure_equal(struct inspection *x, struct errmsg *e)
{
    struct rate_point point = {.method = CURVE_OF_EQUAL, .budget = x->distortion_budget};
    struct solve_options o;
    int r;

    inspection_curves_equal_options(x, &o);
    r = inspection_curves_solve_point(x, &o, &point, x->distortion_equal, e);
    if (r == 0 && !point.solved)
        (void) snprintf(x->unavailable[PART_DISTORTION], ERRMSG_BYTES, "%s", point.why);
    return r;
}

static int inspection_curves_fill_points(struct inspection *x, struct progress *p, struct errmsg *e)
{
    uint32_t n_hs = head_side_count(x->g);
    _cleanup_(freep) double *distortion = calloc(n_hs, sizeof(*distortion));
    int r = distortion ? 0 : fail(e, -ENOMEM, "out of memory for the curves");

    for (size_t i = 0; r == 0 && i < x->n_points; i++) {
        struct rate_point *point = &x->points[i];
        struct solve_options o;
        bool compared;

        progress_update(p, (double) i / (double) x->n_points);
        point->method = (enum inspect_method)(i % INSPECT_METHODS);
        point->budget = x->request.budgets[i / INSPECT_METHODS];
        compared = point->budget == x->distortion_budget && !x->table;
        inspection_curves_method_options(x, point->method, point->budget, &o);
        r = inspection_curves_solve_point(x, &o, point, distortion, e);
        if (r == 0 && compared && point->method == CURVE_OF_BANDS)
            memcpy(x->distortion, distortion, n_hs * sizeof(*distortion));
        if (r == 0 && compared && point->method == CURVE_OF_EQUAL)
            memcpy(x->distortion_equal, distortion, n_hs * sizeof(*distortion));
        if (r == 0 && compared && point->method <= CURVE_OF_EQUAL && !point->solved)
            (void) snprintf(x->unavailable[PART_DISTORTION], ERRMSG_BYTES, "%s", point->why);
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
    x->distortion = calloc(2 * n_hs, sizeof(*x->distortion));
    if (!x->points || !x->distortion)
        return fail(e, -ENOMEM, "out of memory for the curves");

    x->distortion_equal = x->distortion + n_hs;
    x->distortion_budget = inspection_curves_compared_budget(x);
    if (x->n_points == 0) {
        (void) snprintf(x->unavailable[PART_CURVES], ERRMSG_BYTES,
                        "the curves take minutes and are drawn on request: --budgets 1,2,3,4");
        if (!x->table)
            (void) snprintf(x->unavailable[PART_DISTORTION], ERRMSG_BYTES,
                            "it needs a table, or a budget to solve one: --budgets 3");
    }

    if (x->table) {
        r = inspection_curves_measure_table(x, e);
        if (r == 0)
            r = inspection_curves_measure_equal(x, e);
    }

    return r < 0 ? r : inspection_curves_fill_points(x, p, e);
}
