/* From statistics to a table: options, names and the order of the steps. See solve.h. */
#include "alloc/solve.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/metric.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

void solve_options_default(struct solve_options *o, double bpd)
{
    solve_options_for(o, METHOD_BANDS, bpd);
}

void solve_options_for(struct solve_options *o, enum method method, double bpd)
{
    bool bands = method == METHOD_BANDS, mse = method == METHOD_PAPER_MSE;

    *o = (struct solve_options){
        .bpd = bpd,
        .method = method,
        .metric = bands ? METRIC_ATTENTION
                  : mse ? METRIC_MSE
                        : METRIC_QUERY,
        .curve = bands || method == METHOD_DP ? CURVE_MEASURED : CURVE_BENNETT,
        .quantiser = bands ? QUANT_LLOYD_MAX : QUANT_UNIFORM_MIDTREAD,
        .fit_levels = bands,
        .v_from = bands ? PREDICT_HEAD : PREDICT_NONE,
        .decoder = bands ? DECODER_LEAST_SQUARES : DECODER_INVERSE,
        .depth_weights = bands,
        .ceil_bpd = TABLE_BITS_MAX,
    };
    paper_options_default(&o->paper, bpd);
}

/* ---- checking ---- */

static bool solve_is_bpd(double x)
{
    return isfinite(x) && x > 0 && x <= TABLE_BITS_MAX;
}

static int solve_check_budget(const struct solve_options *o, struct errmsg *e)
{
    bool apart = o->k_bpd != 0 || o->v_bpd != 0;

    if (apart && (!solve_is_bpd(o->k_bpd) || !solve_is_bpd(o->v_bpd)))
        return fail(e, -EINVAL,
                    "K and V apart need two budgets above 0 and at most %d bits per number, not %g and %g",
                    TABLE_BITS_MAX, o->k_bpd, o->v_bpd);
    if (!apart && !solve_is_bpd(o->bpd))
        return fail(e, -EINVAL, "a budget of %g bits per number is not above 0 and at most %d", o->bpd,
                    TABLE_BITS_MAX);
    if (!(o->floor_bpd >= 0) || !(o->ceil_bpd >= o->floor_bpd) || o->ceil_bpd > TABLE_BITS_MAX)
        return fail(e, -EINVAL,
                    "floor %g and ceiling %g bits per number do not fit 0 <= floor <= ceiling <= %d",
                    o->floor_bpd, o->ceil_bpd, TABLE_BITS_MAX);
    return 0;
}

static int solve_check_bands(const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    /* four for every coefficient of a value's prediction */
    size_t samples =
        4 * (size_t) s->o.geometry.d * (o->v_from == PREDICT_LAYER ? s->o.geometry.n_kv_heads : 1);

    if (o->fit_levels && o->quantiser != QUANT_LLOYD_MAX)
        return fail(e, -EINVAL,
                    "fitted levels are not uniform: fit levels or ask for a uniform quantiser, not both");
    if (s->cross && (o->curve == CURVE_MEASURED || o->fit_levels || o->decoder == DECODER_LEAST_SQUARES))
        return fail(e, -EINVAL,
                    "the statistics are moments, without vectors: measured curves, fitted levels and "
                    "least-squares decoders need those");
    if (s->cross && o->v_from == PREDICT_LAYER)
        return fail(e, -EINVAL,
                    "the statistics are moments of each head apart: values can be predicted from the keys of "
                    "their own head, not of the layer");
    if (s->n_held == 0 && !s->cross &&
        (o->curve == CURVE_MEASURED || o->fit_levels || o->v_from != PREDICT_NONE))
        return fail(e, -EINVAL,
                    "the statistics hold no sampled tokens, which measured curves, fitted levels and V "
                    "from K need");
    if (o->decoder == DECODER_LEAST_SQUARES && s->n_held < 4 * (size_t) s->o.geometry.d)
        return fail(
            e, -EINVAL,
            "least-squares decoders need at least %u sampled tokens, the statistics hold %zu: calibrate "
            "on more text, or solve with --decoder inverse",
            4 * s->o.geometry.d, s->n_held);
    if (o->levels_from && (o->fit_levels || o->quantiser != QUANT_LLOYD_MAX))
        return fail(e, -EINVAL,
                    "levels are kept from a table, fitted, or those of a uniform quantiser: one of the "
                    "three");
    if (!(o->temper >= 0) || o->temper > 2)
        return fail(e, -EINVAL, "a metric raised to %g: powers are above 0 and at most 2", o->temper);
    if (o->temper > 0 && !metric_tempers(o->metric))
        return fail(e, -EINVAL, "metric %s is not tempered: only attention, output and fisher are",
                    solve_metric_name(o->metric));
    if (o->v_from != PREDICT_NONE && s->cross && s->n_tokens < samples)
        return fail(e, -EINVAL,
                    "V from K needs moments of at least %zu tokens, these are of %llu: count more, or solve "
                    "with --predict none",
                    samples, (unsigned long long) s->n_tokens);
    if (o->v_from != PREDICT_NONE && !s->cross && s->n_held < samples)
        return fail(e, -EINVAL,
                    "predicting values from %s needs at least %zu sampled tokens, the statistics hold %zu: "
                    "calibrate on more text, or solve with --predict %s",
                    o->v_from == PREDICT_LAYER ? "all keys of a layer" : "keys", samples, s->n_held,
                    o->v_from == PREDICT_LAYER ? "head" : "none");
    return 0;
}

static int solve_check_paper_options(const struct paper_options *p, uint32_t d, struct errmsg *e)
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

static int solve_check_paper(const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    enum metric metric = o->method == METHOD_PAPER_MSE ? METRIC_MSE : METRIC_QUERY;
    const char *name = solve_method_name(o->method);

    if (o->method == METHOD_DP && o->metric != METRIC_MSE && o->metric != METRIC_QUERY)
        return fail(e, -EINVAL, "method dp is defined for metrics mse and query, not %s",
                    solve_metric_name(o->metric));
    if (o->method == METHOD_DP && o->curve == CURVE_MEASURED && s->n_held == 0)
        return fail(e, -EINVAL, "the statistics hold no sampled tokens, which measured curves need");
    if (o->method != METHOD_DP && o->metric != metric)
        return fail(e, -EINVAL, "method %s is defined by metric %s, not %s", name, solve_metric_name(metric),
                    solve_metric_name(o->metric));
    if (o->method != METHOD_DP && o->curve != CURVE_BENNETT)
        return fail(e, -EINVAL, "method %s is defined by curve bennett, not %s", name,
                    solve_curve_name(o->curve));
    if (o->fit_levels || o->v_from != PREDICT_NONE || o->decoder != DECODER_INVERSE || o->depth_weights ||
        o->temper != 0 || o->levels_from)
        return fail(
            e, -EINVAL,
            "method %s has no fitted or kept levels, V from K, least-squares decoders, depth weights or "
            "tempered metric",
            name);
    if (o->floor_bpd > 0 || o->ceil_bpd < TABLE_BITS_MAX)
        return fail(e, -EINVAL, "method %s has no floor or ceiling per head", name);
    return solve_check_paper_options(&o->paper, s->o.geometry.d, e);
}

static int solve_check_options(const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    int r = stats_check_complete(s, e);

    if (r < 0)
        return r;
    if (s->n_tokens == 0)
        return fail(e, -EINVAL, "the statistics are empty: no token was counted");
    r = solve_check_budget(o, e);
    if (r < 0)
        return r;
    r = o->method == METHOD_BANDS ? solve_check_bands(s, o, e) : solve_check_paper(s, o, e);
    return r < 0 ? r : metric_available(s, o->metric, e);
}

/* ---- a solver ---- */

int solver_init(struct solver *v, const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    int r;

    *v = (struct solver){.s = s, .g = g, .o = *o, .only_layer = ALL_LAYERS};
    r = solve_check_options(s, o, e);
    if (r < 0)
        return r;
    r = curve_model_init(&v->model, o->curve, o->quantiser);
    if (r < 0)
        return fail(e, r, "the quantiser has no levels");
    memcpy(v->levels[SIDE_K], v->model.levels, sizeof(v->model.levels));
    memcpy(v->levels[SIDE_V], v->model.levels, sizeof(v->model.levels));
    if (o->levels_from)
        memcpy(v->levels, o->levels_from->levels, sizeof(v->levels));
    v->heads = calloc(head_side_count(g), sizeof(*v->heads));
    if (!v->heads)
        return fail(e, -ENOMEM, "out of memory for solving");
    for (uint32_t hs = 0; hs < head_side_count(g); hs++) {
        struct head *h = &v->heads[v->n_heads++];
        uint32_t layer = hs / (2 * g->n_kv_heads);

        h->mean = malloc(d * sizeof(*h->mean));
        h->dec = malloc(d * d * sizeof(*h->dec));
        if (!h->mean || !h->dec || transform_init(&h->t, g->d) < 0)
            return fail(e, -ENOMEM, "out of memory for solving");
        memcpy(h->mean, s->mean + hs * d, d * sizeof(*h->mean));
        /* the weights are KL per unit of the attention metric: they say nothing about another one */
        h->weight =
            o->depth_weights && o->metric == METRIC_ATTENTION ? metric_depth_weight(s, layer, hs % 2) : 1;
    }
    return 0;
}

void solver_deinit(struct solver *v)
{
    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        free(v->heads[hs].mean);
        free(v->heads[hs].dec);
        free(v->heads[hs].predict);
        free(v->heads[hs].decoder.mean);
        free(v->heads[hs].decoder.predict);
        free(v->heads[hs].decoder.dec);
        transform_deinit(&v->heads[hs].t);
    }
    free(v->heads);
    *v = (struct solver){.n_heads = 0};
}

int solver_fail(uint32_t layer, uint32_t head, enum side side, int err, struct errmsg *e)
{
    char letter = side == SIDE_K ? 'K' : 'V';

    if (err == -ENOMEM)
        return fail(e, -ENOMEM, "out of memory for layer %u, head %u, side %c", layer, head, letter);
    return fail(e, -EINVAL,
                "layer %u, head %u, side %c: its covariance, metric or samples are too large to make a "
                "transform of",
                layer, head, letter);
}

void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S)
{
    size_t dd = (size_t) v->g->d * v->g->d;
    const double *scatter = v->s->scatter + head_side * dd;

    for (size_t i = 0; i < dd; i++)
        ret_S[i] = scatter[i] / (double) v->s->n_tokens;
}

int solve_table(const struct stats *s, const struct solve_options *o, void **ret_bytes, size_t *ret_n_bytes,
                struct solve_report *ret_report, struct errmsg *e)
{
    _cleanup_(solver_deinit) struct solver v = {0};
    _cleanup_(freep) void *bytes = NULL;
    struct solve_report report = {0};
    size_t n_bytes = 0;
    int r = solver_init(&v, s, o, e);

    if (r < 0)
        return r;
    r = o->method == METHOD_BANDS ? solve_bands_method(&v, e)
        : o->method == METHOD_DP  ? solve_dp_method(&v, e)
                                  : solve_paper_method(&v, e);
    if (r < 0)
        return r;
    r = solve_build(&v, &bytes, &n_bytes, e);
    if (r < 0)
        return r;
    r = solve_measure(&v, bytes, n_bytes, &report, e);
    if (r == 0 && report.judged) { /* the same table once more, saying what to expect of it */
        free(take_ptr(bytes));
        v.judged = true;
        v.expected[SIDE_K] = report.error_k;
        v.expected[SIDE_V] = report.error_v;
        r = solve_build(&v, &bytes, &n_bytes, e);
    }
    if (r < 0)
        return r;
    *ret_bytes = take_ptr(bytes);
    *ret_n_bytes = n_bytes;
    *ret_report = report;
    return 0;
}

/* ---- names ---- */

static const char *const method_names[] = {"bands", "paper-mse", "paper-kl", "dp"};
static const char *const metric_names[] = {"mse", "query", "attention", "fisher", "output"};
static const char *const curve_names[] = {"measured", "gaussian", "bennett"};
static const char *const prediction_names[] = {"none", "head", "layer"};
static const char *const decoder_names[] = {"inverse", "least-squares"};
static const char *const quantiser_names[] = {"lloyd-max", "uniform", "uniform-midtread"};

static int solve_find_name(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return (int) i;
    return -EINVAL;
}

#define N_NAMES(names) (sizeof(names) / sizeof(*(names)))

int solve_method_from_name(const char *name, enum method *ret)
{
    int i = solve_find_name(method_names, N_NAMES(method_names), name);

    if (i < 0)
        return i;
    *ret = (enum method) i;
    return 0;
}

int solve_metric_from_name(const char *name, enum metric *ret)
{
    int i = solve_find_name(metric_names, N_NAMES(metric_names), name);

    if (i < 0)
        return i;
    *ret = (enum metric) i;
    return 0;
}

int solve_curve_from_name(const char *name, enum curve *ret)
{
    int i = solve_find_name(curve_names, N_NAMES(curve_names), name);

    if (i < 0)
        return i;
    *ret = (enum curve) i;
    return 0;
}

int solve_quantiser_from_name(const char *name, enum quantiser *ret)
{
    int i = solve_find_name(quantiser_names, N_NAMES(quantiser_names), name);

    if (i < 0)
        return i;
    *ret = (enum quantiser) i;
    return 0;
}

int solve_decoder_from_name(const char *name, enum decoder *ret)
{
    int i = solve_find_name(decoder_names, N_NAMES(decoder_names), name);

    if (i < 0)
        return i;
    *ret = (enum decoder) i;
    return 0;
}

const char *solve_decoder_name(enum decoder d)
{
    return decoder_names[d];
}

int solve_prediction_from_name(const char *name, enum prediction *ret)
{
    int i = solve_find_name(prediction_names, N_NAMES(prediction_names), name);

    if (i < 0)
        return i;
    *ret = (enum prediction) i;
    return 0;
}

const char *solve_prediction_name(enum prediction p)
{
    return prediction_names[p];
}

const char *solve_method_name(enum method m)
{
    return method_names[m];
}

const char *solve_metric_name(enum metric m)
{
    return metric_names[m];
}

const char *solve_curve_name(enum curve c)
{
    return curve_names[c];
}

const char *solve_quantiser_name(enum quantiser q)
{
    return quantiser_names[q];
}
