/*
 * An inspection as a page: the document of `--json`, and what the page says beside it. inspect.html has the
 * text, inspect.js draws. See inspect.h.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "alloc/math/sort.h"
#include "base/cleanup.h"
#include "tools/command/utf8_json.h"
#include "tools/inspect/inspect.h"
#include "tools/page/page.h"

enum { DIRECTIONS_SHOWN = 64 }; /* of a spectrum: a line of more points looks the same */

static json_t *inspect_page_text(const char *text)
{
    return text && *text ? utf8_json(text, strlen(text)) : json_null();
}

/* ---- spectra ---- */

/* Shares of the total at the shown directions, over the heads of a layer and side: least, middle, largest. */
static json_t *inspect_page_spread(const struct inspection *x, const double *spectra, uint32_t layer,
                                   enum side side, const json_t *at)
{
    json_t *low = json_array(), *middle = json_array(), *high = json_array();
    double total[GEOMETRY_HEADS_MAX] = {0}, here[GEOMETRY_HEADS_MAX];
    uint32_t n = x->g->n_kv_heads;
    size_t d = x->g->d;

    for (uint32_t head = 0; head < n; head++)
        for (size_t i = 0; i < d; i++)
            total[head] += spectra[head_side_index(x->g, layer, head, side) * d + i];
    for (size_t k = 0; k < json_array_size(at); k++) {
        size_t i = (size_t) json_integer_value(json_array_get(at, k)) - 1;

        for (uint32_t head = 0; head < n; head++) {
            double w = spectra[head_side_index(x->g, layer, head, side) * d + i];

            here[head] = total[head] > 0 ? w / total[head] : 0;
        }
        sort_doubles(here, n);
        (void) json_array_append_new(low, json_real(here[0]));
        (void) json_array_append_new(middle, json_real(here[n / 2]));
        (void) json_array_append_new(high, json_real(here[n - 1]));
    }
    return json_pack("{s:o, s:o, s:o}", "low", low, "middle", middle, "high", high);
}

/* Directions, from 1, evenly from the first to the last. */
static json_t *inspect_page_directions(size_t d)
{
    size_t n = d < DIRECTIONS_SHOWN ? d : DIRECTIONS_SHOWN;
    json_t *at = json_array();

    for (size_t k = 0; k < n; k++) {
        size_t direction = 1 + k * (d - 1) / (n > 1 ? n - 1 : 1);

        (void) json_array_append_new(at, json_integer((json_int_t) direction));
    }
    return at;
}

/* Lines for the pictures: {layer, side, at, plain, weighted}. */
static json_t *inspect_page_spectra(const struct inspection *x)
{
    _cleanup_(json_decrefp) json_t *at = inspect_page_directions(x->g->d);
    json_t *all = json_array();

    for (uint32_t layer = 0; layer < x->g->n_layers; layer++)
        for (int side = SIDE_K; side <= SIDE_V; side++)
            (void) json_array_append_new(
                all, json_pack("{s:i, s:s, s:O, s:o, s:o}", "layer", (int) layer, "side",
                               side == SIDE_K ? "K" : "V", "at", at, "plain",
                               inspect_page_spread(x, x->lambda, layer, (enum side) side, at), "weighted",
                               inspect_page_spread(x, x->weighted, layer, (enum side) side, at)));
    return all;
}

/* The rows of the document without eigenvalues, which take most of its bytes. */
static json_t *inspect_page_spectra_rows(const json_t *rows)
{
    json_t *all = json_array();
    const json_t *row;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        json_t *copy = json_copy((json_t *) row);

        (void) json_object_del(copy, "eigenvalues");
        (void) json_object_del(copy, "weighted");
        (void) json_array_append_new(all, copy);
    }
    return all;
}

/* ---- what the document does not have ---- */

/* The model's name: from the statistics, else from the table's provenance. */
static json_t *inspect_page_model(const struct inspection *x, const json_t *document)
{
    if (x->stats)
        return inspect_page_text(stats_get_options(x->stats)->model_name);
    return inspect_page_text(
        json_string_value(json_object_get(json_object_get(document, "provenance"), "model")));
}

/* The day on which a file was written. */
static json_t *inspect_page_day(const char *path)
{
    struct stat st;
    char day[16];
    struct tm tm;

    if (stat(path, &st) < 0 || !localtime_r(&st.st_mtime, &tm) ||
        strftime(day, sizeof(day), "%Y-%m-%d", &tm) == 0)
        return json_null();
    return json_string(day);
}

static json_t *inspect_page_solved(const struct inspection *x)
{
    const struct solve_options *o = &x->solved;

    if (!x->table || !x->has_solved)
        return json_null();
    return json_pack("{s:s, s:s, s:f, s:b, s:b}", "method", solve_method_name(o->method), "metric",
                     solve_metric_name(o->metric), "budget",
                     o->k_bpd > 0 ? (o->k_bpd + o->v_bpd) / 2 : o->bpd, "predicted",
                     x->table->v_from != PREDICT_NONE, "from_other",
                     x->stats && memcmp(x->solved_from, x->stats_digest, DIGEST_BYTES) != 0);
}

/* The metrics that the statistics can solve for. */
static json_t *inspect_page_metrics(const struct stats *s)
{
    const struct stats_options *o = stats_get_options(s);

    return json_sprintf("mse%s%s%s%s%s", stats_has_queries(s) ? ", query" : "",
                        o->want_output ? ", output" : "", o->want_attention ? ", attention" : "",
                        stats_has_fisher(s) ? ", fisher" : "",
                        stats_has_depth(s) ? "; depth weights measured" : "");
}

static json_t *inspect_page_about(const struct inspection *x, const json_t *document)
{
    const char *path = x->table ? x->request.table_path : x->request.stats_path;

    return json_pack(
        "{s:o, s:o, s:o, s:o, s:s, s:f, s:o, s:o, s:o, s:o, s:o}", "model", inspect_page_model(x, document),
        "path", inspect_page_text(path), "day", inspect_page_day(path), "stats_path",
        inspect_page_text(x->request.stats_path), "metric", solve_metric_name(x->metric), "power",
        isfinite(x->power) ? x->power : 1.0, "solved", inspect_page_solved(x), "unsolved",
        inspect_page_text(x->table && !x->has_solved ? x->unsolved : NULL), "metrics",
        x->stats ? inspect_page_metrics(x->stats) : json_null(), "charged",
        x->table ? json_real(inspection_charged(x)) : json_null(), "spectra",
        x->lambda && x->g->n_layers <= INSPECT_LAYERS_DRAWN ? inspect_page_spectra(x) : json_null());
}

int inspect_page(FILE *f, const struct inspection *x, const json_t *document)
{
    _cleanup_(json_decrefp) json_t *numbers = json_copy((json_t *) document);
    const json_t *spectra = json_object_get(document, "spectra");

    if (!numbers || json_object_set_new(numbers, "page", inspect_page_about(x, document)) < 0 ||
        (spectra && json_object_set_new(numbers, "spectra", inspect_page_spectra_rows(spectra)) < 0))
        return -ENOMEM;

    return page_write(f, PAGE_INSPECT, numbers);
}
