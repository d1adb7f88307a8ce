/* Solving in the public header: defaults and checks of the options, then alloc/solve/solve.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/solve/metric.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/options.h"

/* Public enumerators are the internal ones, with 0 for the default before them. */
#define SOLVE_API_SAME(public, internal) ((int) (public) == (int) (internal) + 1)
_Static_assert(SOLVE_API_SAME(KVC_METRIC_MSE, METRIC_MSE) && SOLVE_API_SAME(KVC_METRIC_QUERY, METRIC_QUERY) &&
                   SOLVE_API_SAME(KVC_METRIC_ATTENTION, METRIC_ATTENTION) &&
                   SOLVE_API_SAME(KVC_METRIC_FISHER, METRIC_FISHER) &&
                   SOLVE_API_SAME(KVC_METRIC_OUTPUT, METRIC_OUTPUT),
               "metrics");
_Static_assert(SOLVE_API_SAME(KVC_CURVE_MEASURED, CURVE_MEASURED) &&
                   SOLVE_API_SAME(KVC_CURVE_GAUSSIAN, CURVE_GAUSSIAN) &&
                   SOLVE_API_SAME(KVC_CURVE_BENNETT, CURVE_BENNETT),
               "curves");
_Static_assert(SOLVE_API_SAME(KVC_QUANTISER_LLOYD_MAX, QUANT_LLOYD_MAX) &&
                   SOLVE_API_SAME(KVC_QUANTISER_UNIFORM, QUANT_UNIFORM) &&
                   SOLVE_API_SAME(KVC_QUANTISER_UNIFORM_MIDTREAD, QUANT_UNIFORM_MIDTREAD),
               "quantisers");
_Static_assert(SOLVE_API_SAME(KVC_PREDICT_NONE, PREDICT_NONE) &&
                   SOLVE_API_SAME(KVC_PREDICT_HEAD, PREDICT_HEAD) &&
                   SOLVE_API_SAME(KVC_PREDICT_LAYER, PREDICT_LAYER),
               "predictions");
_Static_assert(SOLVE_API_SAME(KVC_DECODER_INVERSE, DECODER_INVERSE) &&
                   SOLVE_API_SAME(KVC_DECODER_LEAST_SQUARES, DECODER_LEAST_SQUARES),
               "decoders");
_Static_assert((int) KVC_METHOD_BANDS == METHOD_BANDS && (int) KVC_METHOD_PAPER_MSE == METHOD_PAPER_MSE &&
                   (int) KVC_METHOD_PAPER_KL == METHOD_PAPER_KL && (int) KVC_METHOD_DP == METHOD_DP,
               "methods");
_Static_assert(KVC_BITS_MAX == TABLE_BITS_MAX, "bits");

static int solve_api_check_enum(const char *name, uint32_t value, uint32_t most, struct errmsg *e)
{
    if (value > most)
        return fail(e, -EINVAL, "%s is %u: 0 to %u are possible", name, value, most);

    return 0;
}

static int solve_api_check(const kvc_solve_options *o, struct errmsg *e)
{
    int r;

    if ((r = solve_api_check_enum("method", o->method, KVC_METHOD_DP, e)) < 0 ||
        (r = solve_api_check_enum("metric", o->metric, KVC_METRIC_OUTPUT, e)) < 0 ||
        (r = solve_api_check_enum("curve", o->curve, KVC_CURVE_BENNETT, e)) < 0 ||
        (r = solve_api_check_enum("quantiser", o->quantiser, KVC_QUANTISER_UNIFORM_MIDTREAD, e)) < 0 ||
        (r = solve_api_check_enum("predict", o->predict, KVC_PREDICT_LAYER, e)) < 0 ||
        (r = solve_api_check_enum("decoder", o->decoder, KVC_DECODER_LEAST_SQUARES, e)) < 0)
        return r;
    if (o->flags & ~(KVC_SOLVE_NORMAL_LEVELS | KVC_SOLVE_NO_DEPTH_WEIGHTS | KVC_SOLVE_OWN_SOURCES |
                     KVC_SOLVE_BINARY32 | KVC_SOLVE_BLOCKS))
        return fail(e, -EINVAL, "flags is 0x%x, which has unknown flags", o->flags);
    if (!o->levels_from != (o->levels_from_bytes == 0))
        return fail(e, -EINVAL, "levels_from is a table of %zu bytes, or NULL and 0", o->levels_from_bytes);

    return 0;
}

static int solve_api_read_paper(const kvc_paper_options *from, struct paper_options *ret, struct errmsg *e)
{
    kvc_paper_options p;
    int r = options_read(&p, sizeof(p), from, sizeof(p), "kvc_paper_options", e);

    if (r < 0)
        return r;

    ret->B_min = p.b_min_budget;
    ret->eta = p.eta;
    ret->rounds = p.rounds;
    ret->rank_step = p.rank_step;
    ret->b_min = p.b_min;
    ret->b_max = p.b_max;
    return 0;
}

/* 0 is the default; -1, of the contrast, is none. */
static void solve_api_apply_sides(double k, double v, double ret[static 2])
{
    const double sides[2] = {k, v};

    for (unsigned side = 0; side < 2; side++)
        if (sides[side] != 0)
            ret[side] = sides[side] == -1 ? 0 : sides[side];
}

/* Options with every default in its place. Moments have no vectors for measured curves, fitted levels and
 * least squares. */
static void solve_api_apply(const kvc_solve_options *o, const struct stats *s, struct solve_options *ret)
{
    bool moments = stats_is_moments(s);

    solve_options_for(ret, (enum method) o->method, o->bpd);
    ret->k_bpd = o->k_bpd;
    ret->v_bpd = o->v_bpd;
    ret->floor_bpd = o->floor_bpd;
    if (o->ceil_bpd != 0)
        ret->ceil_bpd = o->ceil_bpd;
    solve_api_apply_sides(o->loading_k, o->loading_v, ret->loading);
    solve_api_apply_sides(o->loading_k, o->loading_v, ret->loading_narrow);
    solve_api_apply_sides(o->contrast_k, o->contrast_v, ret->contrast);
    if (o->trellis_states != 0 || o->levels_from)
        ret->trellis_states = o->trellis_states == 1 || o->levels_from ? 0 : o->trellis_states;
    ret->seed = o->seed;
    ret->temper = o->temper;
    ret->progress = o->progress;
    ret->progress_ctx = o->progress_ctx;
    if (o->metric != KVC_METRIC_DEFAULT)
        ret->metric = (enum metric)(o->metric - 1);
    else if (ret->method == METHOD_BANDS)
        ret->metric = metric_best(s);
    if (o->curve != KVC_CURVE_DEFAULT)
        ret->curve = (enum curve)(o->curve - 1);
    else if (moments && ret->curve == CURVE_MEASURED)
        ret->curve = CURVE_GAUSSIAN;
    if (o->quantiser != KVC_QUANTISER_DEFAULT)
        ret->quantiser = (enum quantiser)(o->quantiser - 1);
    if (ret->quantiser != QUANT_LLOYD_MAX && o->trellis_states == 0)
        ret->trellis_states = 0;
    ret->fit_levels = ret->fit_levels && ret->quantiser == QUANT_LLOYD_MAX && !moments && !o->levels_from &&
                      !(o->flags & KVC_SOLVE_NORMAL_LEVELS);
    if (o->predict != KVC_PREDICT_DEFAULT)
        ret->v_from = (enum prediction)(o->predict - 1);
    if (o->decoder != KVC_DECODER_DEFAULT)
        ret->decoder = (enum decoder)(o->decoder - 1);
    else if (moments)
        ret->decoder = DECODER_INVERSE;
    if (o->flags & KVC_SOLVE_BINARY32)
        ret->half_matrices = false;
    if (o->flags & KVC_SOLVE_NO_DEPTH_WEIGHTS)
        ret->depth_weights = false;
    if (o->flags & KVC_SOLVE_OWN_SOURCES)
        ret->leave_out = false;
    ret->blocks = (o->flags & KVC_SOLVE_BLOCKS) != 0;
    ret->without = o->without;
    ret->n_threads = o->threads;
}

int solve_api_read(const kvc_stats *s, const kvc_solve_options *from, struct solve_options *ret,
                   struct table **ret_levels, struct errmsg *e)
{
    struct errmsg why = {""};
    kvc_solve_options o;
    int r = options_read(&o, sizeof(o), from, sizeof(o), "kvc_solve_options", e);

    if (r == 0)
        r = solve_api_check(&o, e);
    if (r < 0)
        return r;

    solve_api_apply(&o, s->sums, ret);
    if (o.paper) {
        r = solve_api_read_paper(o.paper, &ret->paper, e);
        if (r < 0)
            return r;
    }

    if (o.paper && ret->method == METHOD_BANDS)
        return fail(e, -EINVAL, "paper is for the methods paper-kl, paper-mse and dp");
    if (!o.levels_from)
        return 0;

    r = table_parse(o.levels_from, o.levels_from_bytes, ret_levels, &why);
    if (r < 0)
        return fail(e, r, "levels_from: %s", why.text);

    ret->levels_from = *ret_levels;
    return 0;
}

static int solve_api_report(const struct solve_report *x, const struct solve_options *o, const void *bytes,
                            size_t n_bytes, kvc_solve_report *ret, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    kvc_solve_report report = {
        .struct_bytes = sizeof(report),
        .bpd_code = x->bpd_code,
        .bpd_nominal = x->bpd_nominal,
        .k_bpd = x->k_bpd,
        .v_bpd = x->v_bpd,
        .distortion = x->distortion,
        .distortion_k = x->distortion_k,
        .distortion_v = x->distortion_v,
        .distortion_estimated = x->distortion_estimated,
        .error_k = x->error_k,
        .error_v = x->error_v,
        .measured = x->measured,
        .metric = (uint32_t) o->metric + 1,
        .unseen_distortion = x->unseen.distortion,
        .unseen_error_k = x->unseen.error[SIDE_K],
        .unseen_error_v = x->unseen.error[SIDE_V],
        .largest_share = x->largest_share,
        .without_distortion = x->left_out_distortion,
        .reduced_sources = x->reduced,
        .expected_kl = x->expected_kl,
    };
    int r = table_parse(bytes, n_bytes, &table, e);

    if (r < 0)
        return r;

    memcpy(report.table_digest, table->digest, sizeof(report.table_digest));
    return options_write(ret, &report, sizeof(report), sizeof(report), "kvc_solve_report", e);
}

int kvc_solve(kvc_stats *s, const kvc_solve_options *o, void **ret_bytes, size_t *ret_n_bytes,
              kvc_solve_report *ret_report)
{
    _cleanup_(table_unrefp) struct table *levels = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct solve_options options;
    struct solve_report report;
    struct errmsg *e;
    size_t n_bytes;
    int r;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!o || !ret_bytes || !ret_n_bytes)
        return fail(e, -EINVAL, "kvc_solve: o, ret_bytes or ret_n_bytes is NULL");
    if (ret_report) { /* before the long work */
        r = options_check(ret_report->struct_bytes, sizeof(*ret_report), "kvc_solve_report", e);
        if (r < 0)
            return r;
    }

    r = solve_api_read(s, o, &options, &levels, e);
    if (r == 0)
        r = solve_table(s->sums, &options, &bytes, &n_bytes, &report, e);
    if (r == 0 && ret_report)
        r = solve_api_report(&report, &options, bytes, n_bytes, ret_report, e);
    if (r < 0)
        return r;

    *ret_bytes = take_ptr(bytes);
    *ret_n_bytes = n_bytes;
    return 0;
}

int kvc_solve_get_metric(kvc_stats *s, const kvc_solve_options *o, uint32_t *ret_metric)
{
    _cleanup_(table_unrefp) struct table *levels = NULL;
    struct solve_options options;
    struct errmsg *e;
    int r;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!o || !ret_metric)
        return fail(e, -EINVAL, "kvc_solve_get_metric: o or ret_metric is NULL");

    r = solve_api_read(s, o, &options, &levels, e);
    if (r < 0)
        return r;

    *ret_metric = (uint32_t) options.metric + 1;
    return 0;
}
