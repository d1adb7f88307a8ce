/*
 * Writes the provenance of a table: the statistics and options it was solved with, as JSON
 * inside the table. It contains no time, path or host, so the same statistics and options
 * give the same bytes and the same digest.
 */
#include <errno.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/metric.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Adds a member. Without memory, for it or for @value, *ok becomes false: a provenance that lacks a member
 * would give the table another digest. */
static void solve_provenance_set(bool *ok, json_t *to, const char *key, json_t *value)
{
    *ok = json_object_set_new(to, key, value) == 0 && *ok;
}

static void solve_provenance_set_hex(bool *ok, json_t *to, const char *key, const uint8_t *bytes)
{
    char hex[2 * DIGEST_BYTES + 1];

    (void) sodium_bin2hex(hex, sizeof(hex), bytes, DIGEST_BYTES);
    solve_provenance_set(ok, to, key, json_string(hex));
}

/* As a string: JSON's numbers do not hold 64 bits. */
static void solve_provenance_set_u64(bool *ok, json_t *to, const char *key, uint64_t x)
{
    char text[24];

    (void) snprintf(text, sizeof(text), "%llu", (unsigned long long) x);
    solve_provenance_set(ok, to, key, json_string(text));
}

/* [keys, values] */
static void solve_provenance_set_sides(bool *ok, json_t *to, const char *key, const double x[static 2])
{
    json_t *sides = json_array();

    *ok = json_array_append_new(sides, json_real(x[SIDE_K])) == 0 && *ok;
    *ok = json_array_append_new(sides, json_real(x[SIDE_V])) == 0 && *ok;
    solve_provenance_set(ok, to, key, sides);
}

static void solve_provenance_set_text(bool *ok, json_t *to, const char *key, const char *text)
{
    json_t *s = json_string(text);

    if (!s) /* a lack of memory may be over; else it makes the next call fail too */
        s = json_string(text);
    /* the name of a model comes from its file and may not be UTF-8 */
    solve_provenance_set(ok, to, key, s ? s : json_string("(name is not UTF-8)"));
}

static void solve_provenance_describe_texts(bool *ok, const struct stats *s, json_t *to)
{
    static const char *const kinds[] = {"text", "lines", "model"};
    json_t *texts = json_array(); /* owned by @to once set */

    solve_provenance_set(ok, to, "texts", texts);
    for (size_t i = 0; i < s->n_sources; i++) {
        const struct stats_source *source = &s->sources[i];
        json_t *text = json_object();

        *ok = json_array_append_new(texts, text) == 0 && *ok;
        solve_provenance_set_hex(ok, text, "sha256", source->digest);
        solve_provenance_set_text(ok, text, "kind", kinds[source->kind]);
        solve_provenance_set_u64(ok, text, "bytes", source->bytes);
        solve_provenance_set_u64(ok, text, "tokens", source->tokens);
        solve_provenance_set_u64(ok, text, "windows", source->windows);
        solve_provenance_set(ok, text, "window", json_integer(source->window));
    }
}

static void solve_provenance_describe_statistics(bool *ok, const struct solver *v, const uint8_t *digest,
                                                 json_t *to)
{
    const struct stats *s = v->s;

    solve_provenance_set_hex(ok, to, "sha256", digest);
    if (s->cross)
        solve_provenance_set(ok, to, "moments", json_true());
    if (s->has_metric_digest)
        solve_provenance_set_hex(ok, to, "metric_from", s->metric_digest);
    solve_provenance_set_u64(ok, to, "tokens", s->n_tokens);
    solve_provenance_set_u64(ok, to, "samples", s->n_held);
    solve_provenance_set(ok, to, "key_stride", json_integer(s->o.key_stride));
    solve_provenance_set_u64(ok, to, "seed", s->o.seed);
    solve_provenance_describe_texts(ok, s, to);
    solve_provenance_set(ok, to, "depth_measured", json_boolean(stats_has_depth(s)));
}

/* The paper's parameters, for the methods that use them. */
static void solve_provenance_describe_paper(bool *ok, const struct solve_options *o, json_t *to)
{
    const struct paper_options *p = &o->paper;

    solve_provenance_set(ok, to, "b_min_budget", json_real(p->B_min));
    solve_provenance_set(ok, to, "rank_step", json_integer(p->rank_step));
    solve_provenance_set(ok, to, "b_min", json_integer(p->b_min));
    solve_provenance_set(ok, to, "b_max", json_integer(p->b_max));
    if (o->method == METHOD_DP)
        return;

    solve_provenance_set(ok, to, "eta", json_real(p->eta));
    solve_provenance_set(ok, to, "rounds", json_integer(p->rounds));
}

static void solve_provenance_describe_options(bool *ok, const struct solver *v, json_t *to)
{
    const struct solve_options *o = &v->o;

    if (o->k_bpd > 0) {
        solve_provenance_set(ok, to, "k_bpd", json_real(o->k_bpd));
        solve_provenance_set(ok, to, "v_bpd", json_real(o->v_bpd));
    } else {
        solve_provenance_set(ok, to, "bpd", json_real(o->bpd));
    }

    solve_provenance_set_text(ok, to, "method", solve_method_name(o->method));
    solve_provenance_set_text(ok, to, "metric", solve_metric_name(o->metric));
    solve_provenance_set_text(ok, to, "curve", solve_curve_name(o->curve));
    solve_provenance_set_text(ok, to, "quantiser", solve_quantiser_name(o->quantiser));
    solve_provenance_set(ok, to, "fit_levels", json_boolean(o->fit_levels));
    if (o->levels_from)
        solve_provenance_set_hex(ok, to, "levels_from", o->levels_from->digest);
    if (o->method == METHOD_BANDS) {
        if (!o->levels_from) { /* which have the loading of their table */
            solve_provenance_set_sides(ok, to, "loading", o->loading);
            solve_provenance_set_sides(ok, to, "loading_narrow", o->loading_narrow);
        }
        if (o->trellis_states > 0 && !o->levels_from)
            solve_provenance_set(ok, to, "trellis_states", json_integer(o->trellis_states));
        solve_provenance_set_sides(ok, to, "contrast", o->contrast);
        if (v->half)
            solve_provenance_set_text(ok, to, "matrices", "binary16");
        if (o->blocks)
            solve_provenance_set_text(ok, to, "frame", "block");
    }
    solve_provenance_set_text(ok, to, "decoder", solve_decoder_name(o->decoder));
    solve_provenance_set(ok, to, "predict", json_string(solve_prediction_name(o->v_from)));
    solve_provenance_set(
        ok, to, "depth_weights",
        json_boolean(o->depth_weights && o->metric == METRIC_ATTENTION && stats_has_depth(v->s)));
    if (o->method == METHOD_BANDS)
        solve_provenance_set(ok, to, "leave_out", json_boolean(v->leaves_out));
    if (o->without > 0)
        solve_provenance_set(ok, to, "without", json_integer(o->without));
    if (o->method == METHOD_BANDS && metric_tempers(o->metric))
        solve_provenance_set(ok, to, "temper", json_real(metric_power(o->metric, o->temper)));
    solve_provenance_set(ok, to, "floor_bpd", json_real(o->floor_bpd));
    solve_provenance_set(ok, to, "ceil_bpd", json_real(o->ceil_bpd));
    solve_provenance_set_u64(ok, to, "seed", o->seed);
    if (o->method != METHOD_BANDS)
        solve_provenance_describe_paper(ok, o, to);
    if (v->only_layer != ALL_LAYERS) {
        solve_provenance_set(ok, to, "only_layer", json_integer(v->only_layer));
        solve_provenance_set_text(ok, to, "only_side", v->only_side == SIDE_K ? "K" : "V");
    }
}

/* Five digits: the last ones depend on the number of threads. */
static json_t *solve_provenance_rounded(double x)
{
    char text[32];

    (void) snprintf(text, sizeof(text), "%.5g", x);
    return json_real(strtod(text, NULL));
}

static void solve_provenance_set_rounded(bool *ok, json_t *to, const char *key, double x)
{
    solve_provenance_set(ok, to, key, solve_provenance_rounded(x));
}

/* Distortions at other budgets, by the curves, in proportion to what is expected of this table. */
static void solve_provenance_describe_points(bool *ok, const struct solver *v, json_t *expected)
{
    const struct solve_report *report = v->report;
    double own = report->unseen.expected ? report->unseen.distortion : report->distortion;
    json_t *bpd = json_array(), *solved = json_array(), *equal = json_array(); /* owned once set */

    for (size_t i = 0; i < SOLVE_POINTS; i++) {
        const struct solve_point *p = &v->points[i];
        double scale = v->estimated > 0 ? own / v->estimated : 0;

        if (!(scale * p->distortion > 0) || !(p->equal > 0))
            continue;
        *ok = json_array_append_new(bpd, json_real(p->bpd)) == 0 && *ok;
        *ok = json_array_append_new(solved, solve_provenance_rounded(scale * p->distortion)) == 0 && *ok;
        *ok = json_array_append_new(equal, solve_provenance_rounded(scale * p->equal)) == 0 && *ok;
    }

    solve_provenance_set(ok, expected, "at_bpd", bpd);
    solve_provenance_set(ok, expected, "at_bpd_distortion", solved);
    solve_provenance_set(ok, expected, "at_bpd_equal", equal);
}

/* The table's errors on the samples it was solved from, in the unit of the
 * daemon's fit; see struct solve_report. */
static void solve_provenance_describe_expected(bool *ok, const struct solver *v, json_t *root)
{
    json_t *expected = json_object(); /* owned by root once set */

    solve_provenance_set(ok, root, "expected", expected);
    solve_provenance_set_rounded(ok, expected, "error_k", v->expected[SIDE_K]);
    solve_provenance_set_rounded(ok, expected, "error_v", v->expected[SIDE_V]);
    solve_provenance_set_rounded(ok, expected, "saturated_k", v->report->saturated[SIDE_K]);
    solve_provenance_set_rounded(ok, expected, "saturated_v", v->report->saturated[SIDE_V]);
    solve_provenance_set_rounded(ok, expected, "distortion", v->report->distortion);
    if (v->report->expected_kl > 0)
        solve_provenance_set_rounded(ok, expected, "kl", v->report->expected_kl);
    if (v->o.method == METHOD_BANDS && v->o.k_bpd == 0)
        solve_provenance_describe_points(ok, v, expected);
    if (!v->report->unseen.expected)
        return;

    solve_provenance_set_rounded(ok, expected, "unseen_error_k", v->report->unseen.error[SIDE_K]);
    solve_provenance_set_rounded(ok, expected, "unseen_error_v", v->report->unseen.error[SIDE_V]);
    solve_provenance_set_rounded(ok, expected, "unseen_saturated_k", v->report->unseen.saturated[SIDE_K]);
    solve_provenance_set_rounded(ok, expected, "unseen_saturated_v", v->report->unseen.saturated[SIDE_V]);
    solve_provenance_set_rounded(ok, expected, "unseen_distortion", v->report->unseen.distortion);
}

/* The text of @root; NULL without memory. Jansson 2.14 leaves text out if memory for it is short and says
 * nothing, so the text is made twice. */
static char *solve_provenance_print(const json_t *root)
{
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15);
    _cleanup_(freep) char *text = json_dumps(root, flags), *again = json_dumps(root, flags);

    return text && again && strcmp(text, again) == 0 ? take_ptr(text) : NULL;
}

/* The digest of the statistics, once for all tables of a solve; zeros for a table of one layer. */
static int solve_provenance_digest(struct solver *v, struct errmsg *e)
{
    int r = v->has_digest || v->only_layer != ALL_LAYERS ? 0 : stats_digest(v->s, v->digest, e);

    v->has_digest = r == 0;
    return r;
}

int solve_provenance(struct solver *v, char **ret_json, struct errmsg *e)
{
    _cleanup_(json_decrefp) json_t *root = json_object();
    json_t *statistics = json_object(), *options = json_object(); /* owned by root once set */
    bool ok = true;
    char *text;
    int r = solve_provenance_digest(v, e);

    solve_provenance_set(&ok, root, "statistics", statistics);
    solve_provenance_set(&ok, root, "options", options);
    if (r < 0)
        return r;

    solve_provenance_set_text(&ok, root, "model", v->s->o.model_name);
    solve_provenance_set_text(&ok, root, "version", KVC_VERSION_STRING); /* of the program that solved */
    solve_provenance_describe_statistics(&ok, v, v->digest, statistics);
    solve_provenance_describe_options(&ok, v, options);
    if (v->measured)
        solve_provenance_describe_expected(&ok, v, root);
    text = ok ? solve_provenance_print(root) : NULL;
    if (!text)
        return fail(e, -ENOMEM, "out of memory for the table's provenance");

    *ret_json = text;
    return 0;
}
