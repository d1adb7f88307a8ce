/* An inspection as one JSON document; see inspect_document() in inspect.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/solve/metric.h"
#include "alloc/solve/spectrum.h"
#include "alloc/table/table_account.h"
#include "alloc/table/table_exact.h"
#include "base/digest.h"
#include "tools/command/utf8_json.h"
#include "tools/inspect/inspect.h"

enum { CONTEXT_TOKENS = 32768 }; /* at which the paper calls the bases negligible */

#define GIB ((double) (1 << 30))

static json_t *inspect_json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *inspect_json_numbers(const double *x, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        (void) json_array_append_new(array, inspect_json_number(x[i]));
    return array;
}

/* Takes the reference of @value. After a failure the whole document is dropped. */
static void inspect_json_set(json_t *to, const char *key, json_t *value, bool *failed)
{
    if (json_object_set_new(to, key, value) < 0)
        *failed = true;
}

static void inspect_json_append(json_t *to, json_t *row, bool *failed)
{
    if (json_array_append_new(to, row) < 0)
        *failed = true;
}

static json_t *geometry_json(const struct geometry *g)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:o}", "n_layers", (int) g->n_layers, "n_heads",
                     (int) g->n_heads, "n_kv_heads", (int) g->n_kv_heads, "d", (int) g->d, "n_rot",
                     (int) g->n_rot, "attn_scale", inspect_json_number(g->attn_scale));
}

/* {layer, head, side}: the beginning of a row. */
static json_t *head_json(const struct geometry *g, uint32_t hs)
{
    return json_pack("{s:i, s:i, s:s}", "layer", (int) (hs / 2 / g->n_kv_heads), "head",
                     (int) (hs / 2 % g->n_kv_heads), "side", hs % 2 ? "V" : "K");
}

/* ---- a table ---- */

static json_t *codecs_json(const struct table *t, bool *failed)
{
    const struct geometry *g = &t->geometry;
    json_t *all = json_array();

    for (uint32_t hs = 0; hs < head_side_count(g); hs++) {
        const struct codec *c = &t->codecs[hs];
        json_t *row = head_json(g, hs), *bits = json_array();

        for (unsigned k = 0; k < c->n_half; k++)
            inspect_json_append(bits, json_integer(c->bits[k]), failed);
        inspect_json_set(row, "coordinates", json_integer(inspect_codec_stored(c)), failed);
        inspect_json_set(row, "rank", json_integer(table_codec_rank(c, g->d)), failed);
        inspect_json_set(row, "code_bits", json_integer(c->code_bits), failed);
        inspect_json_set(row, "bpd", inspect_json_number((double) c->code_bits / g->d), failed);
        inspect_json_set(row, "mean_bits", inspect_json_number(inspect_codec_mean_bits(c)), failed);
        inspect_json_set(row, "bits", bits, failed);
        inspect_json_append(all, row, failed);
    }

    return all;
}

static void inspect_json_count_widths(const struct table *t, uint64_t count[2][TABLE_BITS_MAX + 1])
{
    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++)
        for (unsigned k = 0; k < t->codecs[i].n_half; k++)
            count[i % 2][t->codecs[i].bits[k]] += 8;
}

/* Levels and thresholds of every width, in standard deviations; with a trellis, a level of each state. */
static json_t *levels_json(const struct table *t, bool *failed)
{
    uint64_t count[2][TABLE_BITS_MAX + 1] = {{0}};
    json_t *all = json_array();

    inspect_json_count_widths(t, count);
    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
            const struct levels *l = &t->levels[side][b];
            json_t *levels = json_array(), *thresholds = json_array();

            for (unsigned q = 0; q < levels_count(l, b); q++)
                inspect_json_append(levels, inspect_json_number((double) l->value[q] * (double) l->step),
                                    failed);
            for (unsigned q = 0; l->state_bits == 0 && q + 1 < 1u << b; q++)
                inspect_json_append(thresholds, inspect_json_number((double) l->threshold[q]), failed);
            inspect_json_append(
                all,
                json_pack("{s:s, s:i, s:i, s:I, s:o, s:o, s:o}", "side", side == SIDE_K ? "K" : "V", "bits",
                          (int) b, "states", l->state_bits > 0 ? 1 << l->state_bits : 0, "coordinates",
                          (json_int_t) count[side][b], "step", inspect_json_number((double) l->step),
                          "levels", levels, "thresholds", thresholds),
                failed);
        }
    return all;
}

static json_t *bytes_json(const struct inspection *x, bool *failed)
{
    json_t *all = json_array();

    for (int i = 0; i < INSPECT_CONTEXTS; i++) {
        struct sequence_bytes b;
        double per_gib;

        inspection_bytes(x, inspect_contexts[i], &b);
        per_gib = (double) b.tokens * GIB / (double) b.total;
        inspect_json_append(all,
                            json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:I}",
                                      "tokens", (json_int_t) b.tokens, "pages", (json_int_t) b.pages, "codes",
                                      (json_int_t) b.codes, "padding", (json_int_t) b.padding, "headers",
                                      (json_int_t) b.headers, "sinks", (json_int_t) b.sinks, "tail",
                                      (json_int_t) b.tail, "total", (json_int_t) b.total, "binary16",
                                      (json_int_t) b.binary16, "bpd_true", inspect_json_number(b.bpd_true),
                                      "gib", (double) b.total / GIB, "gib_binary16",
                                      (double) b.binary16 / GIB, "tokens_per_gib", (json_int_t) per_gib),
                            failed);
    }

    return all;
}

static json_t *inspect_json_account(const struct table *t)
{
    struct table_account a;

    table_account(t, &a);
    return json_pack("{s:f, s:f, s:f, s:f, s:I, s:f}", "bpd_nominal", a.nominal, "k_bpd_nominal",
                     a.nominal_bpd[SIDE_K], "v_bpd_nominal", a.nominal_bpd[SIDE_V], "bpd_beside_codes", 0.0,
                     "fixed_bytes", (json_int_t) a.fixed_bytes, "fixed_bpd_32768",
                     table_account_fixed_bpd(t, &a, CONTEXT_TOKENS));
}

static json_t *provenance_json(const struct table *t)
{
    json_t *json = json_loads(t->provenance, 0, NULL);

    return json ? json : utf8_json(t->provenance, strlen(t->provenance));
}

static json_t *inspect_json_table(const struct inspection *x, bool *failed)
{
    const struct table *t = x->table;
    char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES], geometry[DIGEST_HEX_BYTES];
    char form[EXACT_FORM_TEXT_BYTES];
    double k_bpd = inspect_side_bpd(t, SIDE_K), v_bpd = inspect_side_bpd(t, SIDE_V);

    return json_pack(
        "{s:s, s:o, s:s, s:s, s:s, s:o, s:i, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, "
        "s:o}",
        "kind", "table", "exact",
        table_is_exact(t) ? json_string(exact_form_print(&t->exact, form)) : json_null(), "digest",
        digest_hex(t->digest, digest), "model_digest", digest_hex(t->model_digest, model), "geometry_digest",
        digest_hex(t->geometry_digest, geometry), "geometry", geometry_json(&t->geometry), "n_sink",
        (int) t->n_sink, "predict", solve_prediction_name(t->v_from), "bpd_code", t->bpd_code, "k_bpd", k_bpd,
        "v_bpd", v_bpd, "file_bytes", (json_int_t) t->n_bytes, "code_bytes_per_token",
        (json_int_t) ((inspect_code_bits(t, SIDE_K) + inspect_code_bits(t, SIDE_V)) / 8), "page_bytes",
        (json_int_t) x->info.page_bytes, "first_page_bytes", (json_int_t) x->info.first_page_bytes, "codecs",
        codecs_json(t, failed), "charged", inspect_json_account(t), "levels", levels_json(t, failed), "bytes",
        bytes_json(x, failed), "provenance", provenance_json(t));
}

/* ---- statistics ---- */

/* Sources that stay apart, in the order of "solve --without". */
static json_t *inspect_json_sources(const struct stats *s)
{
    static const char *const kinds[] = {"text", "lines", "model", "rest"};
    json_t *all = json_array();

    for (uint32_t i = 0; i < stats_domains(s); i++) {
        struct stats_domain_info info;
        char hex[DIGEST_HEX_BYTES];

        stats_domain_info(s, i, &info);
        (void) digest_hex(info.digest, hex);
        if (info.kind == SOURCE_REST) /* several, without a common digest */
            hex[0] = '\0';
        (void) json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:I}", "kind", kinds[info.kind], "name",
                                                    hex, "tokens", (json_int_t) info.n_tokens, "samples",
                                                    (json_int_t) info.n_samples));
    }
    return all;
}

static json_t *stats_json(const struct inspection *x)
{
    const struct stats *s = x->stats;
    const struct stats_options *o = stats_get_options(s);
    char hex[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES], seed[24];

    (void) snprintf(seed, sizeof(seed), "%ju",
                    (uintmax_t) o->seed); /* JSON numbers have fewer than 64 exact bits */
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:i, s:I, s:I, s:i, s:b, s:b, s:b, s:b, s:s, s:s, s:o, s:o}",
                     "kind", "statistics", "digest", digest_hex(x->stats_digest, hex), "model_digest",
                     digest_hex(o->model_digest, model), "model_name",
                     utf8_json(o->model_name, strnlen(o->model_name, sizeof(o->model_name))), "geometry",
                     geometry_json(&o->geometry), "n_sink", (int) o->n_sink, "tokens",
                     (json_int_t) stats_tokens(s), "samples", (json_int_t) stats_samples(s), "key_stride",
                     (int) o->key_stride, "attention", (int) o->want_attention, "output",
                     (int) o->want_output, "fisher", (int) stats_has_fisher(s), "depth_weights",
                     (int) stats_has_depth(s), "seed", seed, "distortion_metric",
                     solve_metric_name(x->metric), "distortion_power", inspect_json_number(x->power),
                     "sources", inspect_json_sources(s));
}

static json_t *spectra_json(const struct inspection *x, bool *failed)
{
    size_t d = x->g->d;
    json_t *all = json_array();

    for (uint32_t hs = 0; hs < head_side_count(x->g); hs++) {
        const double *lambda = x->lambda + hs * d, *weighted = x->weighted + hs * d;
        json_t *row = head_json(x->g, hs);
        double variance = 0, distortion = 0;

        for (size_t i = 0; i < d; i++) {
            variance += lambda[i];
            distortion += weighted[i];
        }

        inspect_json_set(row, "variance", inspect_json_number(variance), failed);
        inspect_json_set(row, "effective_rank", inspect_json_number(spectrum_effective_rank(lambda, d)),
                         failed);
        inspect_json_set(row, "alpha", inspect_json_number(spectrum_power_law(lambda, d)), failed);
        inspect_json_set(row, "distortion_of_nothing", inspect_json_number(distortion), failed);
        inspect_json_set(row, "effective_rank_weighted",
                         inspect_json_number(spectrum_effective_rank(weighted, d)), failed);
        inspect_json_set(row, "alpha_weighted", inspect_json_number(spectrum_power_law(weighted, d)), failed);
        inspect_json_set(row, "eigenvalues", inspect_json_numbers(lambda, d), failed);
        inspect_json_set(row, "weighted", inspect_json_numbers(weighted, d), failed);
        inspect_json_append(all, row, failed);
    }

    return all;
}

static const char *const stage_names[] = {"eigen", "rotated", "basis", "bands"};

static json_t *shape_summary_json(const struct inspection *x, bool *failed)
{
    json_t *all = json_array();

    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (int stage = 0; stage < SHAPE_STAGES; stage++) {
            const struct kurtosis_summary *k = &x->kurtosis[side][stage];

            inspect_json_append(all,
                                json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "side",
                                          side == SIDE_K ? "K" : "V", "coordinates_as", stage_names[stage],
                                          "n", (json_int_t) k->n, "median", inspect_json_number(k->median),
                                          "median_abs", inspect_json_number(k->median_abs), "p95_abs",
                                          inspect_json_number(k->p95_abs)),
                                failed);
        }
    return all;
}

static json_t *histogram_json(const struct inspection *x, bool *failed)
{
    json_t *all = json_array();

    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (int i = 0; i < KURTOSIS_BINS; i++) {
            json_t *row = json_pack("{s:s, s:f}", "side", side == SIDE_K ? "K" : "V", "from",
                                    KURTOSIS_MIN + i * KURTOSIS_BIN);

            for (int stage = 0; stage < SHAPE_STAGES; stage++)
                inspect_json_set(row, stage_names[stage],
                                 json_integer((json_int_t) x->kurtosis[side][stage].bins[i]), failed);
            inspect_json_append(all, row, failed);
        }
    return all;
}

static json_t *qq_json(const struct inspection *x, bool *failed)
{
    json_t *all = json_array();

    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (int i = 0; i < INSPECT_QQ; i++) {
            json_t *row =
                json_pack("{s:s, s:f}", "side", side == SIDE_K ? "K" : "V", "normal", inspect_qq_normal(i));

            for (int stage = 0; stage < SHAPE_STAGES; stage++)
                inspect_json_set(
                    row, stage_names[stage],
                    inspect_json_number(inspect_qq(x, (enum side) side, (enum shape_stage) stage, i)),
                    failed);
            inspect_json_append(all, row, failed);
        }
    return all;
}

static json_t *shapes_json(const struct inspection *x, bool *failed)
{
    json_t *heads = json_array();

    for (uint32_t hs = 0; hs < head_side_count(x->g); hs++) {
        json_t *row = head_json(x->g, hs);

        for (int stage = 0; stage < SHAPE_STAGES; stage++)
            inspect_json_set(row, stage_names[stage], inspect_json_number(x->shapes[hs].kurtosis[stage]),
                             failed);
        inspect_json_append(heads, row, failed);
    }

    return json_pack("{s:o, s:o, s:o, s:o}", "summary", shape_summary_json(x, failed), "heads", heads,
                     "histogram", histogram_json(x, failed), "qq", qq_json(x, failed));
}

static json_t *curves_json(const struct inspection *x, bool *failed)
{
    json_t *all = json_array();

    for (size_t i = 0; i < x->n_points; i++) {
        const struct rate_point *p = &x->points[i];
        json_t *row = json_pack("{s:s, s:f}", "method", inspect_method_name(p->method), "budget", p->budget);

        if (p->solved) {
            inspect_json_set(row, "bpd", inspect_json_number(p->bpd), failed);
            inspect_json_set(row, "k_bpd", inspect_json_number(p->k_bpd), failed);
            inspect_json_set(row, "v_bpd", inspect_json_number(p->v_bpd), failed);
            inspect_json_set(row, "bpd_stored", inspect_json_number(p->bpd_stored), failed);
            inspect_json_set(row, "distortion",
                             inspect_json_number(p->distortion[SIDE_K] + p->distortion[SIDE_V]), failed);
            inspect_json_set(row, "distortion_k", inspect_json_number(p->distortion[SIDE_K]), failed);
            inspect_json_set(row, "distortion_v", inspect_json_number(p->distortion[SIDE_V]), failed);
        } else {
            inspect_json_set(row, "unavailable", utf8_json(p->why, strlen(p->why)), failed);
        }

        inspect_json_append(all, row, failed);
    }

    return all;
}

static json_t *inspect_json_distortion(const struct inspection *x, bool *failed)
{
    json_t *all = json_array();

    for (uint32_t hs = 0; hs < head_side_count(x->g); hs++) {
        json_t *row = head_json(x->g, hs);

        inspect_json_set(row, "equal", inspect_json_number(x->distortion_equal[hs]), failed);
        inspect_json_set(row, "solved", inspect_json_number(x->distortion[hs]), failed);
        inspect_json_append(all, row, failed);
    }

    return all;
}

static json_t *inspect_json_eval(const struct inspect_eval *v)
{
    return json_pack("{s:f, s:f, s:f, s:I, s:I}", "ppl_exact", v->ppl_exact, "ppl", v->ppl, "kl", v->kl,
                     "tokens", (json_int_t) v->tokens, "window", (json_int_t) v->window);
}

static void inspect_json_add_analyses(const struct inspection *x, json_t *root, bool *failed)
{
    if (x->has_eval)
        inspect_json_set(root, "eval", inspect_json_eval(&x->eval), failed);
    if (x->lambda)
        inspect_json_set(root, "spectra", spectra_json(x, failed), failed);
    if (x->shapes)
        inspect_json_set(root, "gaussianity", shapes_json(x, failed), failed);
    if (x->points && !x->unavailable[PART_CURVES][0])
        inspect_json_set(root, "curves", curves_json(x, failed), failed);
    if (x->distortion && !x->unavailable[PART_DISTORTION][0]) {
        inspect_json_set(root, "distortion", inspect_json_distortion(x, failed), failed);
        inspect_json_set(root, "distortion_budget", inspect_json_number(x->distortion_budget), failed);
    }
}

json_t *inspect_document(const struct inspection *x)
{
    bool failed = false;
    json_t *root = x->table ? inspect_json_table(x, &failed) : stats_json(x), *missing = json_object();

    for (int part = 0; part < INSPECT_PARTS; part++)
        if (x->unavailable[part][0])
            inspect_json_set(missing, inspect_part_name((enum inspect_part) part),
                             utf8_json(x->unavailable[part], strlen(x->unavailable[part])), &failed);
    inspect_json_set(root, "unavailable", missing, &failed);
    if (x->table && x->stats)
        inspect_json_set(root, "statistics", stats_json(x), &failed);
    inspect_json_add_analyses(x, root, &failed);
    if (!failed)
        return root;

    json_decref(root);
    return NULL;
}
