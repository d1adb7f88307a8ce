/* The first section of a page: what a table costs, and what it gives; see inspect_summary.h. */
#include <stdio.h>

#include "tools/inspect/inspect_summary.h"
#include "tools/page/html.h"

enum { TILE_TOKENS = 32768 };

#define GIB ((double) (1 << 30))

/* ---- quality ---- */

static void inspect_cost_quality_tiles(FILE *f, const struct inspect_eval *v)
{
    char value[32];

    (void) snprintf(value, sizeof(value), "%.3g nats", v->kl);
    summary_tile(f, "KL to the exact model, per token", value, "of %.0f tokens in windows of %.0f", v->tokens,
                 v->window);
    (void) snprintf(value, sizeof(value), "%.4g → %.4g", v->ppl_exact, v->ppl);
    summary_tile(f, "Perplexity", value, "%+.2f %%; 0 %% would be the exact model",
                 100 * (v->ppl / v->ppl_exact - 1));
}

bool cost_distortion(const struct inspection *x, double *ret_equal, double *ret_solved)
{
    double equal = 0, solved = 0;

    if (!x->distortion || x->unavailable[PART_DISTORTION][0])
        return false;

    for (uint32_t hs = 0; hs < head_side_count(x->g); hs++) {
        equal += x->distortion_equal[hs];
        solved += x->distortion[hs];
    }
    *ret_equal = equal;
    *ret_solved = solved;
    return equal > 0 && solved > 0;
}

static void inspect_cost_distortion_tile(FILE *f, const struct inspection *x)
{
    double equal, solved;
    char value[48];

    if (!cost_distortion(x, &equal, &solved))
        return;

    (void) snprintf(value, sizeof(value), "%.3g %%", 100 * solved / equal);
    summary_tile(f, "Distortion, of that of equal budgets", value,
                 "e′Me per token: %.4g; with the same %.4g bits for every head: %.4g", solved,
                 x->distortion_budget, equal);
}

/* ---- memory ---- */

static void inspect_cost_memory_tiles(FILE *f, const struct inspection *x)
{
    struct sequence_bytes b;
    char value[32];

    inspection_bytes(x, TILE_TOKENS, &b);
    (void) snprintf(value, sizeof(value), "%.4g GiB", (double) b.total / GIB);
    summary_tile(f, "A context of 32768 tokens", value, "%.4g GiB in binary16: %.2g times as much",
                 (double) b.binary16 / GIB, (double) b.binary16 / (double) b.total);
    (void) snprintf(value, sizeof(value), "%ju", (uintmax_t) ((double) b.tokens * GIB / (double) b.total));
    summary_tile(f, "Tokens per GiB", value, "%ju in binary16",
                 (uintmax_t) ((double) b.tokens * GIB / (double) b.binary16));
    (void) snprintf(value, sizeof(value), "%.3f", b.bpd_true);
    summary_tile(f, "Bits per number", value, "%.3f of codes (keys %.3f, values %.3f); binary16: 16",
                 x->table->bpd_code, inspect_side_bpd(x->table, SIDE_K), inspect_side_bpd(x->table, SIDE_V));
}

/* ---- the section ---- */

static void inspect_cost_explain(FILE *f, const struct inspection *x)
{
    double equal, solved;

    if (x->table && !x->has_eval)
        fputs("<p class=\"note\">What the table does to answers is not measured here. "
              "<code>kvcobra eval MODEL --table TABLE --text TEXT --json</code> measures perplexity and KL; "
              "<code>kvcobra inspect --eval</code> reads its output.</p>\n",
              f);
    if (cost_distortion(x, &equal, &solved))
        fprintf(
            f,
            "<p>Distortion is the squared error of decoded vectors, weighed by how much the model depends "
            "on each direction (metric <code>%s</code>), summed over layers, heads and sides. It has no "
            "unit: compare it with values of the same metric, such as that of equal budgets.</p>\n",
            solve_metric_name(x->metric));
    else if (x->table)
        fputs(
            "<p class=\"note\">The distortion needs the statistics of the solve: <code>--stats</code>.</p>\n",
            f);
}

static const struct html_column context_columns[] = {
    {"tokens", "tokens of a context"},   {"gib", "GiB"},
    {"gib_binary16", "GiB in binary16"}, {"tokens_per_gib", "tokens per GiB"},
    {"bpd_true", "bits per number"},     {NULL, NULL},
};

void cost_section(FILE *f, const struct inspection *x, const json_t *document)
{
    fputs("<dl class=\"tiles\">\n", f);
    if (x->has_eval)
        inspect_cost_quality_tiles(f, &x->eval);
    if (x->table)
        inspect_cost_memory_tiles(f, x);
    inspect_cost_distortion_tile(f, x);
    if (!x->table)
        summary_tile(f, "A table", "not yet", "<code>kvcobra solve</code> makes one of any budget");
    fputs("</dl>\n", f);
    inspect_cost_explain(f, x);
    if (x->table)
        html_table(f, "bytes", "Memory of one sequence, with everything that it holds",
                   json_object_get(document, "bytes"), context_columns);
}
