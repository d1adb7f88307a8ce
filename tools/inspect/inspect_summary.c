/* The summary of a page; see inspect_summary.h. */
#include "tools/inspect/inspect_summary.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/human.h"
#include "tools/page/html.h"

enum {
    VALUE_BYTES = 600, /* of a value that is shown */
    NAME_BYTES = 120,  /* of a model's name in a heading */
    FACTS_MAX = 64,    /* of a provenance */
};

/* The model's name: from the statistics, else from the table's provenance, else NULL. It is valid while
 * @ret_owner is. */
static const char *inspect_summary_model_name_of(const struct inspection *x, json_t **ret_owner)
{
    const char *name;

    *ret_owner = NULL;
    if (x->stats)
        return stats_get_options(x->stats)->model_name;

    *ret_owner = json_loads(x->table->provenance, 0, NULL);
    name = json_string_value(json_object_get(*ret_owner, "model"));
    return name;
}

static void inspect_summary_put_model(FILE *f, const struct inspection *x)
{
    _cleanup_(json_decrefp) json_t *owner = NULL;
    const char *name = inspect_summary_model_name_of(x, &owner);

    html_text_cut(f, name && *name ? name : "a model without a name", NAME_BYTES);
}

void summary_title(FILE *f, const struct inspection *x)
{
    inspect_summary_put_model(f, x);
    if (x->table)
        fprintf(f, ", %.2f bits per number", x->table->bpd_code);
    fputs(" – KV-COBRA", f);
}

/* " File NAME of DAY." */
static void inspect_summary_put_file(FILE *f, const char *path)
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    char day[16];
    struct tm tm;

    fputs(" File <code><bdi>", f);
    html_text_cut(f, slash ? slash + 1 : path, NAME_BYTES);
    fputs("</bdi></code>", f);
    if (stat(path, &st) == 0 && localtime_r(&st.st_mtime, &tm) &&
        strftime(day, sizeof(day), "%Y-%m-%d", &tm) > 0)
        fprintf(f, " of %s", day);
    putc('.', f);
}

void summary_header(FILE *f, const struct inspection *x)
{
    fputs("<h1><bdi>", f);
    inspect_summary_put_model(f, x);
    fputs("</bdi></h1>\n<p class=\"lead\">", f);
    if (x->table && x->stats)
        fprintf(f, "An allocation table of %.2f bits per number, analysed with calibration statistics.",
                x->table->bpd_code);
    else if (x->table)
        fprintf(f, "An allocation table of %.2f bits per number.", x->table->bpd_code);
    else
        fputs("Calibration statistics, from which tables of every budget are solved.", f);
    inspect_summary_put_file(f, x->table ? x->request.table_path : x->request.stats_path);
    fputs("</p>\n", f);
}

/* ---- tiles ---- */

void summary_tile(FILE *f, const char *title, const char *value, const char *fmt, ...)
{
    va_list ap;

    fprintf(f, "<div><dt>%s</dt><dd>%s<small>", title, value);
    va_start(ap, fmt);
    (void) vfprintf(f, fmt, ap);
    va_end(ap);
    fputs("</small></dd></div>\n", f);
}

static double inspect_summary_budget(const struct inspection *x)
{
    return x->solved.k_bpd > 0 ? (x->solved.k_bpd + x->solved.v_bpd) / 2 : x->solved.bpd;
}

void summary_tiles(FILE *f, const struct inspection *x)
{
    const struct geometry *g = x->g;
    char value[32];

    fputs("<dl class=\"tiles\">\n", f);
    if (x->table && x->has_solved) {
        summary_tile(f, "Method", solve_method_name(x->solved.method), "metric %s%s",
                     solve_metric_name(x->solved.metric),
                     x->table->v_from != PREDICT_NONE ? ", values predicted from keys" : "");
        (void) snprintf(value, sizeof(value), "%.4g", inspect_summary_budget(x));
        summary_tile(f, "Budget", value, "bits per number");
    }
    (void) snprintf(value, sizeof(value), "%u × %u", g->n_layers, g->n_kv_heads);
    summary_tile(f, "Layers × KV heads", value, "of dimension %u, %u of it rotated; %u query heads", g->d,
                 g->n_rot, g->n_heads);
    if (x->stats) {
        (void) snprintf(value, sizeof(value), "%ju", (uintmax_t) stats_tokens(x->stats));
        summary_tile(f, "Tokens calibrated on", value, "vectors of %zu stored", stats_samples(x->stats));
    }

    fputs("</dl>\n", f);
}

/* ---- facts ---- */

static void inspect_summary_fact(FILE *f, const char *name, const char *value)
{
    fputs("<div><dt>", f);
    html_text_cut(f, name, NAME_BYTES);
    fputs("</dt><dd><bdi>", f);
    html_text_cut(f, value, VALUE_BYTES);
    fputs("</bdi></dd></div>\n", f);
}

static void inspect_summary_hex_fact(FILE *f, const char *name, const uint8_t *digest)
{
    char hex[DIGEST_HEX_BYTES];

    fprintf(f, "<div><dt>%s</dt><dd><code>%s</code></dd></div>\n", name, digest_hex(digest, hex));
}

/* A value of the provenance, as text, unless it is an object. */
static void inspect_summary_value_fact(FILE *f, const char *name, const json_t *value)
{
    _cleanup_(freep) char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));

    if (json_is_string(value))
        inspect_summary_fact(f, name, json_string_value(value));
    else
        inspect_summary_fact(f, name, text ? text : "?");
}

/* Whether inspect_summary_texts() shows @value as a table. */
static bool inspect_summary_is_rows(const json_t *value)
{
    return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

/* Names and values. @inside: an object within another one is shown as a value. */
static void inspect_summary_provenance_values(FILE *f, const json_t *object, bool inside, size_t *n)
{
    const json_t *value;
    const char *key;

    json_object_foreach((json_t *) object, key, value)
    {
        if (inside ? strcmp(key, "texts") == 0 && inspect_summary_is_rows(value) : json_is_object(value))
            continue;
        if (++*n > FACTS_MAX)
            break;

        inspect_summary_value_fact(f, key, value);
    }
}

/* Values first: they must not stand under the heading of an object. */
static void inspect_summary_provenance_facts(FILE *f, const json_t *object, size_t *n)
{
    const json_t *value;
    const char *key;

    inspect_summary_provenance_values(f, object, false, n);
    json_object_foreach((json_t *) object, key, value)
    {
        if (!json_is_object(value))
            continue;
        if (++*n > FACTS_MAX)
            break;

        fputs("<div class=\"group\"><dt>", f);
        html_text_cut(f, key, NAME_BYTES);
        fputs("</dt><dd></dd></div>\n", f);
        inspect_summary_provenance_values(f, value, true, n);
    }
}

static void inspect_summary_texts(FILE *f, const json_t *provenance)
{
    static const struct html_column columns[] = {
        {"sha256", "SHA-256"},  {"kind", "read as"},          {"bytes", "bytes"}, {"tokens", "tokens used"},
        {"windows", "windows"}, {"window", "longest window"}, {NULL, NULL},
    };
    const json_t *rows = json_object_get(json_object_get(provenance, "statistics"), "texts");

    if (inspect_summary_is_rows(rows))
        html_table(f, "provenance.statistics.texts",
                   "Texts that the statistics were measured on. lines: each line is a document; model: "
                   "generated by the model.",
                   rows, columns);
}

static void inspect_summary_provenance(FILE *f, const struct table *t)
{
    _cleanup_(json_decrefp) json_t *json = json_loads(t->provenance, 0, NULL);
    size_t n = 0;

    fputs("<h3>Provenance of the table</h3>\n<dl class=\"facts columns\">\n", f);
    if (json_is_object(json))
        inspect_summary_provenance_facts(f, json, &n);
    else
        inspect_summary_fact(f, "provenance", t->provenance);
    if (n > FACTS_MAX)
        inspect_summary_fact(f, "…", "the other values are in the JSON");
    fputs("</dl>\n", f);
    inspect_summary_texts(f, json);
}

static void inspect_summary_stats_facts(FILE *f, const struct inspection *x)
{
    const struct stats_options *o = stats_get_options(x->stats);
    char text[160];

    inspect_summary_fact(f, "statistics file", x->request.stats_path);
    inspect_summary_hex_fact(f, "statistics", x->stats_digest);
    (void) snprintf(text, sizeof(text), "mse%s%s%s%s%s", stats_has_queries(x->stats) ? ", query" : "",
                    o->want_output ? ", output" : "", o->want_attention ? ", attention" : "",
                    stats_has_fisher(x->stats) ? ", fisher" : "",
                    stats_has_depth(x->stats) ? "; depth weights measured" : "");
    inspect_summary_fact(f, "metrics", text);
    if (x->table && x->has_solved && memcmp(x->solved_from, x->stats_digest, DIGEST_BYTES) != 0)
        inspect_summary_fact(f, "note", "the table was solved from other statistics of the same model");
}

void summary_facts(FILE *f, const struct inspection *x)
{
    char size[HUMAN_BYTES];

    fputs("<dl class=\"facts\">\n", f);
    if (x->table) {
        inspect_summary_fact(f, "table file", x->request.table_path);
        inspect_summary_hex_fact(f, "table", x->table->digest);
        inspect_summary_fact(f, "size", human_bytes(x->table->n_bytes, size));
        if (!x->has_solved && x->unsolved[0])
            inspect_summary_fact(f, "note", x->unsolved);
    }

    inspect_summary_hex_fact(f, "model",
                             x->table ? x->table->model_digest : stats_get_options(x->stats)->model_digest);
    if (x->stats)
        inspect_summary_stats_facts(f, x);
    fputs("</dl>\n", f);
    if (x->table)
        inspect_summary_provenance(f, x->table);
}
