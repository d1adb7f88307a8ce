/* Defaults of the options of a solve, and the combinations that are refused. See solve.h and solver.h. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/solve/metric.h"
#include "alloc/solve/solver.h"
#include "alloc/stats/stats_internal.h"
#include "base/errmsg.h"

/* By side. Chosen by the KL of texts that took no part: alloc/EXPERIMENTS.md. */
static const double default_loading[2] = {1.4, 1.1}, default_loading_narrow[2] = {1.2, 1},
                    default_contrast[2] = {1, 1};
static const uint32_t default_trellis_states = 64;

void solve_options_default(struct solve_options *o, double bpd)
{
    solve_options_for(o, METHOD_BANDS, bpd);
}

void solve_options_least_squares(struct solve_options *o)
{
    for (unsigned side = 0; side < 2; side++) {
        o->loading[side] = o->loading_narrow[side] = 1;
        o->contrast[side] = 0;
    }
}

double solve_loading(const struct solve_options *o, unsigned side, unsigned b)
{
    return b == 1 ? o->loading_narrow[side] : o->loading[side];
}

void solve_options_for(struct solve_options *o, enum method method, double bpd)
{
    bool bands = method == METHOD_BANDS;
    enum metric paper_metric = method == METHOD_PAPER_MSE ? METRIC_MSE : METRIC_QUERY;

    *o = (struct solve_options){
        .bpd = bpd,
        .method = method,
        .metric = bands ? METRIC_ATTENTION : paper_metric,
        .curve = bands || method == METHOD_DP ? CURVE_MEASURED : CURVE_BENNETT,
        .quantiser = bands ? QUANT_LLOYD_MAX : QUANT_UNIFORM_MIDTREAD,
        .fit_levels = bands,
        .v_from = bands ? PREDICT_HEAD : PREDICT_NONE,
        .decoder = bands ? DECODER_LEAST_SQUARES : DECODER_INVERSE,
        .half_matrices = bands,
        .leave_out = bands,
        .depth_weights = bands,
        .ceil_bpd = TABLE_BITS_MAX,
    };
    solve_options_least_squares(o);
    if (bands) {
        memcpy(o->loading, default_loading, sizeof(o->loading));
        memcpy(o->loading_narrow, default_loading_narrow, sizeof(o->loading_narrow));
        memcpy(o->contrast, default_contrast, sizeof(o->contrast));
        o->trellis_states = default_trellis_states;
    }
    paper_options_default(&o->paper, bpd);
}

/* ---- checks ---- */

static bool solve_options_is_bpd(double x)
{
    return isfinite(x) && x > 0 && x <= TABLE_BITS_MAX;
}

static int solve_options_check_budget(const struct solve_options *o, struct errmsg *e)
{
    bool apart = o->k_bpd != 0 || o->v_bpd != 0;

    if (apart && (!solve_options_is_bpd(o->k_bpd) || !solve_options_is_bpd(o->v_bpd)))
        return fail(
            e, -EINVAL,
            "separate budgets for K and V must both be above 0 and at most %d bits per number, not %g and %g",
            TABLE_BITS_MAX, o->k_bpd, o->v_bpd);
    if (!apart && !solve_options_is_bpd(o->bpd))
        return fail(e, -EINVAL, "a budget of %g bits per number: must be above 0 and at most %d", o->bpd,
                    TABLE_BITS_MAX);
    if (!(o->floor_bpd >= 0) || !(o->ceil_bpd >= o->floor_bpd) || o->ceil_bpd > TABLE_BITS_MAX)
        return fail(e, -EINVAL,
                    "floor %g and ceiling %g bits per number do not fit 0 <= floor <= ceiling <= %d",
                    o->floor_bpd, o->ceil_bpd, TABLE_BITS_MAX);

    return 0;
}

/* Sampled tokens of the sources that the solve uses. */
static size_t solve_options_samples(const struct stats *s, const struct solve_options *o)
{
    size_t n = 0;

    for (size_t t = 0; t < s->n_held; t++)
        n += o->without == 0 || s->domain_of[t] != o->without - 1;
    return n;
}

static int solve_options_check_loading(const struct solve_options *o, struct errmsg *e)
{
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= 2; b++) {
            double loading = solve_loading(o, side, b);

            if (!(loading >= 1) || loading > SOLVE_LOADING_MAX || !(o->contrast[side] >= 0) ||
                o->contrast[side] > 1)
                return fail(e, -EINVAL,
                            "loading %g and contrast %g do not fit 1 <= loading <= %g, 0 <= contrast <= 1",
                            loading, o->contrast[side], SOLVE_LOADING_MAX);
        }
    return 0;
}

static int solve_options_check_bands(const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    const char *those = o->without > 0 ? "the other sources" : "the statistics";
    size_t n_held = solve_options_samples(s, o);
    /* four tokens for each coefficient that predicts a value */
    size_t samples =
        4 * (size_t) s->o.geometry.d * (o->v_from == PREDICT_LAYER ? s->o.geometry.n_kv_heads : 1);
    int r = solve_options_check_loading(o, e);

    if (r < 0)
        return r;
    if (o->fit_levels && o->quantiser != QUANT_LLOYD_MAX)
        return fail(e, -EINVAL, "levels cannot be both fitted and uniform: choose one");
    if (o->trellis_states != 0 && !solve_trellis_exists(o->trellis_states))
        return fail(e, -EINVAL, "a trellis of %u states: 64, 128 and 256 are possible", o->trellis_states);
    if (o->trellis_states != 0 && o->quantiser != QUANT_LLOYD_MAX)
        return fail(e, -EINVAL, "a uniform quantiser has no trellis: choose one of the two");
    if (s->cross && (o->curve == CURVE_MEASURED || o->fit_levels || o->decoder == DECODER_LEAST_SQUARES))
        return fail(e, -EINVAL,
                    "the statistics are moments without vectors, which measured curves, fitted levels and "
                    "least-squares decoders need");
    if (s->cross && o->v_from == PREDICT_LAYER)
        return fail(e, -EINVAL,
                    "the statistics are moments of single heads: predict values from the keys of their own "
                    "head, not of the layer");
    if (n_held == 0 && !s->cross &&
        (o->curve == CURVE_MEASURED || o->fit_levels || o->v_from != PREDICT_NONE))
        return fail(e, -EINVAL,
                    "%s hold no sampled tokens, which measured curves, fitted levels and V from K need",
                    those);
    if (o->decoder == DECODER_LEAST_SQUARES && n_held < 4 * (size_t) s->o.geometry.d)
        return fail(e, -EINVAL,
                    "least-squares decoders need at least %u sampled tokens, %s hold %zu: "
                    "calibrate on more text, or solve with --decoder inverse",
                    4 * s->o.geometry.d, those, n_held);
    if (o->levels_from && (o->fit_levels || o->quantiser != QUANT_LLOYD_MAX))
        return fail(e, -EINVAL,
                    "levels are taken from a table, fitted, or those of a uniform quantiser: choose one of "
                    "the three");
    if (!(o->temper >= 0) || o->temper > 2)
        return fail(e, -EINVAL, "the metric cannot be raised to %g: powers are above 0 and at most 2",
                    o->temper);
    if (o->temper > 0 && !metric_tempers(o->metric))
        return fail(e, -EINVAL,
                    "metric %s cannot be raised to a power: only attention, output and fisher can",
                    solve_metric_name(o->metric));
    if (o->v_from != PREDICT_NONE && s->cross && s->n_tokens < samples)
        return fail(e, -EINVAL,
                    "V from K needs moments of at least %zu tokens, these hold %llu: count more, or solve "
                    "with --predict none",
                    samples, (unsigned long long) s->n_tokens);
    if (o->v_from != PREDICT_NONE && !s->cross && n_held < samples)
        return fail(e, -EINVAL,
                    "predicting values from %s needs at least %zu sampled tokens, %s hold %zu: "
                    "calibrate on more text, or solve with --predict %s",
                    o->v_from == PREDICT_LAYER ? "all keys of a layer" : "keys", samples, those, n_held,
                    o->v_from == PREDICT_LAYER ? "head" : "none");

    return 0;
}

static int solve_options_check_widths(const struct paper_options *p, uint32_t d, struct errmsg *e)
{
    uint32_t rounds_max = 10000;

    if (p->b_min < 1 || p->b_max < p->b_min || p->b_max > TABLE_BITS_MAX)
        return fail(e, -EINVAL, "widths of %u to %u bits do not fit 1 <= least <= most <= %d", p->b_min,
                    p->b_max, TABLE_BITS_MAX);
    if (p->rank_step < 1 || p->rank_step > d)
        return fail(e, -EINVAL, "a rank step of %u is not in 1..%u, the head dimension", p->rank_step, d);
    if (!(p->B_min >= 0) || p->B_min > d * TABLE_BITS_MAX)
        return fail(e, -EINVAL, "a least budget of %g bits per head is not in 0..%u", p->B_min,
                    d * TABLE_BITS_MAX);
    if (!(p->eta >= 0) || !isfinite(p->eta) || p->rounds > rounds_max)
        return fail(e, -EINVAL, "eta %g and %u rounds do not fit 0 <= eta and rounds <= %u", p->eta,
                    p->rounds, rounds_max);

    return 0;
}

static int solve_options_check_paper(const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    enum metric metric = o->method == METHOD_PAPER_MSE ? METRIC_MSE : METRIC_QUERY;
    const char *name = solve_method_name(o->method);

    if (o->method == METHOD_DP && o->metric != METRIC_MSE && o->metric != METRIC_QUERY)
        return fail(e, -EINVAL, "method dp is defined for metrics mse and query, not %s",
                    solve_metric_name(o->metric));
    if (o->method == METHOD_DP && o->curve == CURVE_MEASURED && solve_options_samples(s, o) == 0)
        return fail(e, -EINVAL, "the statistics hold no sampled tokens, which measured curves need");
    if (o->method != METHOD_DP && o->metric != metric)
        return fail(e, -EINVAL, "method %s is defined by metric %s, not %s", name, solve_metric_name(metric),
                    solve_metric_name(o->metric));
    if (o->method != METHOD_DP && o->curve != CURVE_BENNETT)
        return fail(e, -EINVAL, "method %s is defined by curve bennett, not %s", name,
                    solve_curve_name(o->curve));
    for (unsigned side = 0; side < 2; side++)
        if (o->loading[side] != 1 || o->loading_narrow[side] != 1 || o->contrast[side] != 0)
            return fail(e, -EINVAL, "method %s has no loading and no contrast", name);
    if (o->trellis_states != 0)
        return fail(e, -EINVAL, "method %s has no trellis", name);
    if (o->blocks)
        return fail(e, -EINVAL, "method %s has no frame but 1", name);
    if (o->fit_levels || o->v_from != PREDICT_NONE || o->decoder != DECODER_INVERSE || o->depth_weights ||
        o->temper != 0 || o->levels_from)
        return fail(e, -EINVAL,
                    "method %s has no fitted levels, levels from a table, V from K, least-squares decoders, "
                    "depth weights or tempered metric",
                    name);
    if (o->floor_bpd > 0 || o->ceil_bpd < TABLE_BITS_MAX)
        return fail(e, -EINVAL, "method %s has no floor or ceiling per head", name);

    return solve_options_check_widths(&o->paper, s->o.geometry.d, e);
}

int solve_options_check(const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    int r = stats_check_complete(s, e);

    if (r < 0)
        return r;
    if (s->n_tokens == 0)
        return fail(e, -EINVAL, "the statistics are empty: no token was counted");

    if (o->without > s->n_domains || (o->without > 0 && s->n_domains < 2))
        return fail(e, -EINVAL, "the statistics have %u sources: they cannot be solved without source %u",
                    s->n_domains, o->without);

    r = solve_options_check_budget(o, e);
    if (r < 0)
        return r;

    if (o->method == METHOD_BANDS)
        r = solve_options_check_bands(s, o, e);
    else
        r = solve_options_check_paper(s, o, e);
    if (r < 0)
        return r;

    return metric_available(s, o->metric, e);
}
