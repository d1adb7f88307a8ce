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

#include "alloc/metric.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static void solve_provenance_set_hex(json_t *to, const char *key, const uint8_t *bytes)
{
    char hex[2 * DIGEST_BYTES + 1];

    (void) sodium_bin2hex(hex, sizeof(hex), bytes, DIGEST_BYTES);
    (void) json_object_set_new(to, key, json_string(hex));
}

/* As a string: JSON's numbers do not hold 64 bits. */
static void solve_provenance_set_u64(json_t *to, const char *key, uint64_t x)
{
    char text[24];

    (void) snprintf(text, sizeof(text), "%llu", (unsigned long long) x);
    (void) json_object_set_new(to, key, json_string(text));
}

static void solve_provenance_set_text(json_t *to, const char *key, const char *text)
{
    json_t *s = json_string(text);

    /* the name of a model comes from its file and may not be UTF-8 */
    (void) json_object_set_new(to, key, s ? s : json_string("(name is not UTF-8)"));
}

static void solve_provenance_describe_texts(const struct stats *s, json_t *to)
{
    static const char *const kinds[] = {"text", "lines", "model"};
    json_t *texts = json_array(); /* owned by @to once set */

    (void) json_object_set_new(to, "texts", texts);
    for (size_t i = 0; i < s->n_sources; i++) {
        const struct stats_source *source = &s->sources[i];
        json_t *text = json_object();

        (void) json_array_append_new(texts, text);
        solve_provenance_set_hex(text, "sha256", source->digest);
        solve_provenance_set_text(text, "kind", kinds[source->kind]);
        solve_provenance_set_u64(text, "bytes", source->bytes);
        solve_provenance_set_u64(text, "tokens", source->tokens);
        solve_provenance_set_u64(text, "windows", source->windows);
        (void) json_object_set_new(text, "window", json_integer(source->window));
    }
}

static void solve_provenance_describe_statistics(const struct solver *v, const uint8_t *digest, json_t *to)
{
    const struct stats *s = v->s;

    solve_provenance_set_hex(to, "sha256", digest);
    if (s->cross)
        (void) json_object_set_new(to, "moments", json_true());
    if (s->has_metric_digest)
        solve_provenance_set_hex(to, "metric_from", s->metric_digest);
    solve_provenance_set_u64(to, "tokens", s->n_tokens);
    solve_provenance_set_u64(to, "samples", s->n_held);
    (void) json_object_set_new(to, "key_stride", json_integer(s->o.key_stride));
    solve_provenance_set_u64(to, "seed", s->o.seed);
    solve_provenance_describe_texts(s, to);
    (void) json_object_set_new(to, "depth_measured", json_boolean(stats_has_depth(s)));
}

/* The paper's parameters, for the methods that use them. */
static void solve_provenance_describe_paper(const struct solve_options *o, json_t *to)
{
    const struct paper_options *p = &o->paper;

    (void) json_object_set_new(to, "b_min_budget", json_real(p->B_min));
    (void) json_object_set_new(to, "rank_step", json_integer(p->rank_step));
    (void) json_object_set_new(to, "b_min", json_integer(p->b_min));
    (void) json_object_set_new(to, "b_max", json_integer(p->b_max));
    if (o->method == METHOD_DP)
        return;

    (void) json_object_set_new(to, "eta", json_real(p->eta));
    (void) json_object_set_new(to, "rounds", json_integer(p->rounds));
}

static void solve_provenance_describe_options(const struct solver *v, json_t *to)
{
    const struct solve_options *o = &v->o;

    if (o->k_bpd > 0) {
        (void) json_object_set_new(to, "k_bpd", json_real(o->k_bpd));
        (void) json_object_set_new(to, "v_bpd", json_real(o->v_bpd));
    } else {
        (void) json_object_set_new(to, "bpd", json_real(o->bpd));
    }

    solve_provenance_set_text(to, "method", solve_method_name(o->method));
    solve_provenance_set_text(to, "metric", solve_metric_name(o->metric));
    solve_provenance_set_text(to, "curve", solve_curve_name(o->curve));
    solve_provenance_set_text(to, "quantiser", solve_quantiser_name(o->quantiser));
    (void) json_object_set_new(to, "fit_levels", json_boolean(o->fit_levels));
    if (o->levels_from)
        solve_provenance_set_hex(to, "levels_from", o->levels_from->digest);
    solve_provenance_set_text(to, "decoder", solve_decoder_name(o->decoder));
    (void) json_object_set_new(to, "predict", json_string(solve_prediction_name(o->v_from)));
    (void) json_object_set_new(
        to, "depth_weights",
        json_boolean(o->depth_weights && o->metric == METRIC_ATTENTION && stats_has_depth(v->s)));
    if (o->method == METHOD_BANDS && metric_tempers(o->metric))
        (void) json_object_set_new(to, "temper", json_real(metric_power(o->metric, o->temper)));
    (void) json_object_set_new(to, "floor_bpd", json_real(o->floor_bpd));
    (void) json_object_set_new(to, "ceil_bpd", json_real(o->ceil_bpd));
    solve_provenance_set_u64(to, "seed", o->seed);
    if (o->method != METHOD_BANDS)
        solve_provenance_describe_paper(o, to);
    if (v->only_layer != ALL_LAYERS) {
        (void) json_object_set_new(to, "only_layer", json_integer(v->only_layer));
        solve_provenance_set_text(to, "only_side", v->only_side == SIDE_K ? "K" : "V");
    }
}

/* Five digits: the last ones depend on the number of threads. */
static void solve_provenance_set_rounded(json_t *to, const char *key, double x)
{
    char text[32];

    (void) snprintf(text, sizeof(text), "%.5g", x);
    (void) json_object_set_new(to, key, json_real(strtod(text, NULL)));
}

/* The table's errors on the samples it was solved from, in the unit of the
 * daemon's fit; see struct solve_report. */
static void solve_provenance_describe_expected(const struct solver *v, json_t *root)
{
    json_t *expected = json_object(); /* owned by root once set */

    (void) json_object_set_new(root, "expected", expected);
    solve_provenance_set_rounded(expected, "error_k", v->expected[SIDE_K]);
    solve_provenance_set_rounded(expected, "error_v", v->expected[SIDE_V]);
}

int solve_provenance(const struct solver *v, char **ret_json, struct errmsg *e)
{
    _cleanup_(json_decrefp) json_t *root = json_object();
    json_t *statistics = json_object(), *options = json_object(); /* owned by root once set */
    uint8_t digest[DIGEST_BYTES] = {0};
    char *text;
    int r = v->only_layer == ALL_LAYERS ? stats_digest(v->s, digest, e) : 0;

    (void) json_object_set_new(root, "statistics", statistics);
    (void) json_object_set_new(root, "options", options);
    if (r < 0)
        return r;

    solve_provenance_set_text(root, "model", v->s->o.model_name);
    solve_provenance_set_text(root, "version", KVC_VERSION_STRING); /* of the program that solved */
    solve_provenance_describe_statistics(v, digest, statistics);
    solve_provenance_describe_options(v, options);
    if (v->measured)
        solve_provenance_describe_expected(v, root);
    text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    if (!text)
        return fail(e, -ENOMEM, "out of memory for the table's provenance");

    *ret_json = text;
    return 0;
}
