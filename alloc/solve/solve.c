/* The order of a solve: options, method, table, report. See solve.h. */
#include "alloc/solve/solve.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/solve/metric.h"
#include "alloc/solve/solve_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static int solve_run_method(struct solver *v, struct errmsg *e)
{
    switch (v->o.method) {
    case METHOD_BANDS:
        return solve_bands_method(v, e);
    case METHOD_DP:
        return solve_dp_method(v, e);
    case METHOD_PAPER_MSE:
    case METHOD_PAPER_KL:
        break;
    }
    return solve_paper_method(v, e);
}

/* All sources but o->without; numbers that no statistics have are refused later. */
static uint32_t solve_mask(const struct solve_options *o)
{
    return o->without >= 1 && o->without <= STATS_DOMAINS_MAX ? ~(1u << (o->without - 1)) : UINT32_MAX;
}

/* The KL per distortion was measured with the metric of the statistics and the default quantisers: others
 * have another distortion at the same KL. */
static double solve_expect_kl(const struct stats *s, const struct solve_options *o,
                              const struct solve_report *report)
{
    struct solve_options usual;

    solve_options_for(&usual, METHOD_BANDS, 1);
    if (o->method != METHOD_BANDS || o->metric != metric_best(s) || o->temper != 0 ||
        o->trellis_states == 0 || o->without > 0 ||
        memcmp(o->loading, usual.loading, sizeof(o->loading)) != 0 ||
        memcmp(o->loading_narrow, usual.loading_narrow, sizeof(o->loading_narrow)) != 0 ||
        memcmp(o->contrast, usual.contrast, sizeof(o->contrast)) != 0)
        return 0;

    return stats_kl_per_distortion(s) *
           (report->unseen.expected ? report->unseen.distortion : report->distortion);
}

int solve_table(const struct stats *s, const struct solve_options *o, void **ret_bytes, size_t *ret_n_bytes,
                struct solve_report *ret_report, struct errmsg *e)
{
    _cleanup_(solver_deinit) struct solver v = {0};
    _cleanup_(freep) void *bytes = NULL;
    struct solve_report report = {0};
    size_t n_bytes = 0;
    int r = solver_init_with(&v, s, o, solve_mask(o), e);

    if (r < 0)
        return r;

    r = solve_run_method(&v, e);
    if (r < 0)
        return r;

    r = solve_build(&v, &bytes, &n_bytes, e);
    if (r < 0)
        return r;

    r = solve_measure(&v, bytes, n_bytes, &report, e);
    if (r < 0)
        return r;

    report.reduced = v.reduced;
    if (o->leave_out && v.n_sources > 1 && v.largest_share > SOLVER_SHARE_MAX)
        report.largest_share = v.largest_share;
    r = solve_expect_unseen(&v, &report, e);
    report.expected_kl = solve_expect_kl(s, o, &report);
    if (r == 0)
        r = solve_measure_left_out(&v, bytes, n_bytes, &report, e);
    if (r < 0)
        return r;

    /* Build again: the provenance holds the errors that the first table was measured with. */
    if (report.measured) {
        free(take_ptr(bytes));
        v.measured = true;
        v.expected[SIDE_K] = report.error_k;
        v.expected[SIDE_V] = report.error_v;
        v.report = &report;
        r = solve_build(&v, &bytes, &n_bytes, e);
        if (r < 0)
            return r;
    }

    *ret_bytes = take_ptr(bytes);
    *ret_n_bytes = n_bytes;
    *ret_report = report;
    return 0;
}
