/*
 * An inspection as an HTML page: sections with text, plots, and a table of numbers under each plot. The page
 * is one file that loads nothing and runs no script. See inspect.h.
 */
#include <math.h>
#include <string.h>

#include "alloc/table_account.h"
#include "tools/page/html.h"
#include "tools/inspect/inspect.h"
#include "tools/inspect/inspect_plots.h"
#include "tools/inspect/inspect_summary.h"

/* ---- parts of sections ---- */

static void inspect_page_begin_section(FILE *f, const char *id, const char *title)
{
    fprintf(f, "<section id=\"%s\" aria-labelledby=\"%s-title\"><h2 id=\"%s-title\">%s</h2>\n", id, id, id,
            title);
}

static void inspect_page_end_section(FILE *f)
{
    fputs("</section>\n", f);
}

/* False: the part is unavailable, and the reason is written. */
static bool inspect_page_has_part(FILE *f, const struct inspection *x, enum inspect_part part)
{
    if (!x->unavailable[part][0])
        return true;

    fputs("<p class=\"note\">Not available: ", f);
    html_text(f, x->unavailable[part]);
    fputs(".</p>\n", f);
    return false;
}

/* Rows at a path of one or two names: "codecs", "gaussianity.qq". */
static const json_t *inspect_page_rows_at(const json_t *document, const char *path)
{
    const char *dot = strchr(path, '.');
    const json_t *x = document;

    if (dot) {
        char first[32];

        (void) snprintf(first, sizeof(first), "%.*s", (int) (dot - path), path);
        x = json_object_get(x, first);
        path = dot + 1;
    }

    return json_object_get(x, path);
}

static void inspect_page_numbers(FILE *f, const json_t *document, const char *path, const char *caption,
                                 const struct html_column *columns)
{
    fputs("<details><summary>Numbers</summary>\n", f);
    html_table(f, path, caption, inspect_page_rows_at(document, path), columns);
    fputs("</details>\n", f);
}

#define HEAD_COLUMNS                                                                                         \
    {"layer", "layer"}, {"head", "head"},                                                                    \
    {                                                                                                        \
        "side", "side"                                                                                       \
    }

/* ---- ranks and bits ---- */

static const struct html_column codec_columns[] = {
    HEAD_COLUMNS,
    {"coordinates", "stored coordinates"},
    {"rank", "without padding"},
    {"mean_bits", "mean width"},
    {"code_bits", "bits per token"},
    {"bpd", "bits per number"},
    {NULL, NULL},
};

static void inspect_page_bits_section(FILE *f, const struct inspection *x, const json_t *document)
{
    inspect_page_begin_section(f, "bits", "Ranks and bits");
    fputs("<p>Each head and side stores some directions of its vectors with some bits each. A head gets "
          "fewer bits if its errors matter little, or if its vectors lie in few directions.</p>\n",
          f);
    if (inspect_page_has_part(f, x, PART_TABLE)) {
        fputs("<div class=\"part\"><h3>Stored coordinates</h3><p>The number of stored directions, and their "
              "mean bits. The other "
              "directions are replaced by their mean.</p>\n<figure>",
              f);
        plot_ranks(f, x);
        fputs("</figure></div>\n<div class=\"part\"><h3>Budget</h3><p>The product of both: stored bits per "
              "token and original number. "
              "With equal budgets all cells are equal.</p>\n<figure>",
              f);
        plot_budgets(f, x);
        fputs("</figure></div>\n<div class=\"part\"><h3>Widths by layer</h3><p>Coordinates of each layer by "
              "width, the widest at the "
              "bottom. The share missing to 1 is not stored.</p>\n<figure>",
              f);
        plot_widths(f, x);
        fputs("</figure></div>\n", f);
        inspect_page_numbers(f, document, "codecs", "Every head and side", codec_columns);
    }

    inspect_page_end_section(f);
}

/* ---- distortion ---- */

static const struct html_column distortion_columns[] = {
    HEAD_COLUMNS,
    {"equal", "equal budgets"},
    {"solved", "as solved"},
    {NULL, NULL},
};

static void inspect_page_explain_distortion(FILE *f, const struct inspection *x)
{
    const char *metric = solve_metric_name(x->metric);

    fprintf(f,
            "<p>The distortion e′Me is the squared error e of a decoded vector, weighed by the metric M, "
            "which says how much the model depends on each direction (metric <code>%s</code>",
            metric);
    if (x->power != 1)
        fprintf(f, ", to the power %.4g", x->power);
    fputs("), per token. It is measured on the sampled vectors of the calibration text.</p>\n", f);
}

static void inspect_page_distortion_section(FILE *f, const struct inspection *x, const json_t *document)
{
    double equal, solved;

    inspect_page_begin_section(f, "distortion", "Distortion by head");
    if (inspect_page_has_part(f, x, PART_DISTORTION)) {
        inspect_page_explain_distortion(f, x);
        fprintf(f,
                "<p>Open marks: every head and side has %.4g bits per number. Filled marks: as solved, with "
                "the same total.",
                x->distortion_budget);
        if (cost_distortion(x, &equal, &solved))
            fprintf(f, " The sum is %.4g with equal budgets and %.4g as solved.", equal, solved);
        fputs(" Bits move to the heads where they reduce the distortion most, so other heads get "
              "worse.</p>\n<figure>",
              f);
        plot_distortion(f, x);
        fputs("</figure>\n", f);
        inspect_page_numbers(f, document, "distortion", "Distortion e′Me per token of every head and side",
                             distortion_columns);
    }

    inspect_page_end_section(f);
}

/* ---- curves ---- */

static const struct html_column curve_columns[] = {
    {"method", "method"},
    {"budget", "nominal"},
    {"bpd", "charged"},
    {"bpd_stored", "stored"},
    {"k_bpd", "keys"},
    {"v_bpd", "values"},
    {"distortion", "distortion e′Me"},
    {"distortion_k", "of keys"},
    {"distortion_v", "of values"},
    {"unavailable", "why not solved"},
    {NULL, NULL},
};

static void inspect_page_curves_section(FILE *f, const struct inspection *x, const json_t *document)
{
    inspect_page_begin_section(f, "curves", "Bits and distortion by method");
    if (inspect_page_has_part(f, x, PART_CURVES)) {
        fputs("<p>Each method is solved at each budget from these statistics, and its distortion is measured "
              "on the sampled vectors: lower is better, further left is smaller. The paper’s methods are "
              "charged rank times bits, without padding; <code>bands, equal budgets</code> moves no bits "
              "between heads.</p>\n<figure>",
              f);
        plot_curves(f, x);
        fputs("</figure>\n", f);
        inspect_page_numbers(f, document, "curves", "Methods and budgets", curve_columns);
    }

    inspect_page_end_section(f);
}

/* ---- spectra ---- */

static const struct html_column spectra_columns[] = {
    HEAD_COLUMNS,
    {"variance", "variance"},
    {"effective_rank", "effective rank"},
    {"alpha", "exponent"},
    {"distortion_of_nothing", "distortion if not stored"},
    {"effective_rank_weighted", "effective rank, weighted"},
    {"alpha_weighted", "exponent, weighted"},
    {NULL, NULL},
};

static void inspect_page_spectra_section(FILE *f, const struct inspection *x, const json_t *document)
{
    inspect_page_begin_section(f, "spectra", "Spectra");
    if (inspect_page_has_part(f, x, PART_SPECTRA)) {
        fputs("<div class=\"part\"><h3>Spectra of the vectors</h3><p>Eigenvalues of the covariance of each "
              "layer’s keys and "
              "values. If a line falls steeply, few directions have most of the variance, and the others "
              "need not be stored.</p>\n<figure>",
              f);
        plot_spectra(f, x, x->lambda);
        fprintf(f,
                "</figure></div>\n<div class=\"part\"><h3>Weighted spectra</h3><p>The same with every "
                "direction weighed by the effect "
                "of an error in it (metric <code>%s</code>): <code>bands</code> distributes its bits by "
                "these values.</p>\n"
                "<figure>",
                solve_metric_name(x->metric));
        plot_spectra(f, x, x->weighted);
        fputs("</figure></div>\n<div class=\"part\"><h3>Steepness</h3><p>The exponent of a power law fitted "
              "to each head’s "
              "eigenvalues: the smaller it is, the more directions must be stored. Values usually have "
              "smaller exponents than keys.</p>\n<figure>",
              f);
        plot_alpha(f, x);
        fputs("</figure></div>\n", f);
        inspect_page_numbers(f, document, "spectra", "Every head and side; the eigenvalues are in the JSON",
                             spectra_columns);
    }

    inspect_page_end_section(f);
}

/* ---- Gaussianity ---- */

static const struct html_column shape_columns[] = {
    {"side", "side"},
    {"coordinates_as", "coordinates"},
    {"n", "number"},
    {"median", "median"},
    {"median_abs", "median of absolute values"},
    {"p95_abs", "95th percentile of absolute values"},
    {NULL, NULL},
};
static const struct html_column shape_head_columns[] = {
    HEAD_COLUMNS,
    {"basis", "before, in the solver’s basis"},
    {"bands", "after, in bands"},
    {"eigen", "before, eigenvectors"},
    {"rotated", "after, all together"},
    {NULL, NULL},
};
static const struct html_column histogram_columns[] = {
    {"side", "side"},
    {"from", "excess kurtosis from"},
    {"basis", "before, in the solver’s basis"},
    {"bands", "after, in bands"},
    {"eigen", "before, eigenvectors"},
    {"rotated", "after, all together"},
    {NULL, NULL},
};
static const struct html_column qq_columns[] = {
    {"side", "side"},
    {"normal", "N(0,1)"},
    {"basis", "before, in the solver’s basis"},
    {"bands", "after, in bands"},
    {"eigen", "before, eigenvectors"},
    {"rotated", "after, all together"},
    {NULL, NULL},
};

static void inspect_page_shapes_section(FILE *f, const struct inspection *x, const json_t *document)
{
    inspect_page_begin_section(f, "shapes", "Gaussianity of the coordinates");
    fputs("<p>Quantisers are designed for normal distributions. Their excess kurtosis is 0; it is below 0 "
          "for lighter tails and above 0 for heavier tails. A rotation that mixes coordinates brings it "
          "nearer to 0 the more coordinates it mixes, unless their magnitudes are correlated.</p>\n",
          f);
    if (inspect_page_has_part(f, x, PART_SHAPES)) {
        fputs("<div class=\"part\"><h3>By head</h3><p>Median over a head’s coordinates, before and after the "
              "rotation in bands "
              "of eight that <code>bands</code> uses.</p>\n<figure>",
              f);
        plot_kurtosis_heads(f, x);
        fputs("</figure></div>\n", f);
        inspect_page_numbers(f, document, "gaussianity.heads",
                             "Median excess kurtosis of every head and side", shape_head_columns);
        fputs("<div class=\"part\"><h3>All coordinates, rotated in bands of eight</h3><p>Every coordinate of "
              "every head, in the "
              "basis that <code>bands</code> uses.</p>\n<figure>",
              f);
        plot_kurtosis(f, x, SHAPE_BASIS, SHAPE_BANDS);
        fputs("</figure></div>\n<div class=\"part\"><h3>All coordinates, rotated together</h3><p>As in the "
              "paper: eigenvectors of the "
              "covariance, then one rotation of all of them.</p>\n<figure>",
              f);
        plot_kurtosis(f, x, SHAPE_EIGEN, SHAPE_ROTATED);
        fputs("</figure></div>\n", f);
        html_table(f, "gaussianity.summary",
                   "Excess kurtosis of all coordinates. eigen: eigenvectors of the covariance; rotated: the "
                   "same, rotated together; basis: the basis of the method bands; bands: the same, rotated "
                   "in bands of eight",
                   inspect_page_rows_at(document, "gaussianity.summary"), shape_columns);
        inspect_page_numbers(
            f, document, "gaussianity.histogram",
            "Coordinates by excess kurtosis, in steps of 0.1; the last step has all larger values",
            histogram_columns);
        fputs("<div class=\"part\"><h3>Quantiles</h3><p>All coordinates pooled, each scaled to variance 1, "
              "compared with a "
              "normal distribution: it is the diagonal, and steeper ends are heavier tails.</p>\n<figure>",
              f);
        plot_qq(f, x);
        fputs("</figure></div>\n", f);
        inspect_page_numbers(f, document, "gaussianity.qq", "Quantiles of the pooled coordinates",
                             qq_columns);
    }

    inspect_page_end_section(f);
}

/* ---- levels and bytes ---- */

static const struct html_column level_columns[] = {
    {"side", "side"}, {"bits", "bits"},     {"coordinates", "coordinates"},
    {"step", "step"}, {"levels", "levels"}, {"thresholds", "thresholds"},
    {NULL, NULL},
};
static const struct html_column byte_columns[] = {
    {"tokens", "tokens"},
    {"pages", "pages"},
    {"codes", "codes"},
    {"padding", "padding"},
    {"headers", "headers"},
    {"sinks", "exact first tokens"},
    {"tail", "exact newest tokens"},
    {"total", "total"},
    {"binary16", "binary16"},
    {"bpd_true", "bits per number"},
    {NULL, NULL},
};

static void inspect_page_levels_section(FILE *f, const struct inspection *x, const json_t *document)
{
    inspect_page_begin_section(f, "levels", "Levels and thresholds");
    fputs("<p>A coordinate is stored as the number of the nearest level. Levels are dense where values are "
          "frequent. All coordinates of a side and width share their levels. With a trellis, a code "
          "chooses among levels that depend on the codes before it: there are as many as the trellis has "
          "states.</p>\n",
          f);
    if (inspect_page_has_part(f, x, PART_TABLE)) {
        fputs("<figure>", f);
        plot_levels(f, x);
        fputs("</figure>\n", f);
        inspect_page_numbers(f, document, "levels",
                             "Levels and thresholds in standard deviations; all of them are in the JSON",
                             level_columns);
    }

    inspect_page_end_section(f);
}

static void inspect_page_bytes_section(FILE *f, const struct inspection *x, const json_t *document)
{
    inspect_page_begin_section(f, "bytes", "Bytes of a sequence");
    fputs(
        "<p>Beside codes, a sequence holds page headers, its first tokens exactly, and its 64 to 127 newest "
        "tokens, which are not packed yet. In long contexts the codes are by far the largest part.</p>\n",
        f);
    if (inspect_page_has_part(f, x, PART_TABLE)) {
        struct table_account a;

        fputs("<figure>", f);
        plot_bytes(f, x);
        fputs("</figure>\n", f);
        table_account(x->table, &a);
        fprintf(f,
                "<p>Each process holds means, bases and levels once for all its sequences: %.4g MiB, or %.4g "
                "bits per number of a sequence of 32768 tokens.</p>\n",
                (double) a.fixed_bytes / (1 << 20), table_account_fixed_bpd(x->table, &a, 32768));
        inspect_page_numbers(f, document, "bytes", "Bytes held by a sequence", byte_columns);
    }

    inspect_page_end_section(f);
}

/* ---- the paper ---- */

static void inspect_page_paper_section(FILE *f)
{
    static const struct {
        const char *figure, *where, *id;
    } replays[] = {
        {"(a) ranks and widths chosen per head (first figure; second figure of r* and b*)",
         "Stored coordinates", "bits"},
        {"(b), (c) spectra of single heads", "Spectra of the vectors", "spectra"},
        {"Budgets across layers and heads", "Budget", "bits"},
        {"Excess kurtosis before and after rotation", "All coordinates, rotated together", "shapes"},
        {"Q–Q plots against N(0,1)", "Quantiles", "shapes"},
        {"Values are flatter than keys: exponents, ranks at 2 bits", "Steepness; Stored coordinates",
         "spectra"},
    };

    inspect_page_begin_section(f, "paper", "The paper’s figures");
    fputs("<p>With a table of <code>solve --method paper-kl</code> and its statistics, this page shows these "
          "figures of the paper for your model.</p>\n<table class=\"facts\"><tbody>\n",
          f);
    for (size_t i = 0; i < sizeof(replays) / sizeof(*replays); i++)
        fprintf(f, "<tr><td>%s</td><td><a href=\"#%s\">%s</a></td></tr>\n", replays[i].figure, replays[i].id,
                replays[i].where);
    fputs("</tbody></table>\n", f);
    inspect_page_end_section(f);
}

/* ---- the page ---- */

static void inspect_page_navigation(FILE *f)
{
    static const struct {
        const char *id, *title;
    } links[] = {
        {"cost", "Cost"},           {"bytes", "Bytes"},
        {"bits", "Ranks and bits"}, {"distortion", "Distortion"},
        {"curves", "Methods"},      {"spectra", "Spectra"},
        {"shapes", "Gaussianity"},  {"levels", "Levels"},
        {"paper", "The paper"},     {"provenance", "Options and files"},
    };

    fputs("<nav aria-label=\"Sections\"><ul>", f);
    for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++)
        fprintf(f, "<li><a href=\"#%s\">%s</a></li>", links[i].id, links[i].title);
    fputs("</ul></nav>\n", f);
}

void inspect_page(FILE *f, const struct inspection *x, const json_t *document)
{
    html_begin(f);
    summary_title(f, x);
    html_begin_body(f);
    fputs("<header>\n", f);
    summary_header(f, x);
    inspect_page_navigation(f);
    fputs("</header>\n<main>\n", f);
    inspect_page_begin_section(f, "cost", "What it costs and gives");
    cost_section(f, x, document);
    inspect_page_end_section(f);
    inspect_page_bytes_section(f, x, document);
    inspect_page_bits_section(f, x, document);
    inspect_page_distortion_section(f, x, document);
    inspect_page_curves_section(f, x, document);
    inspect_page_spectra_section(f, x, document);
    inspect_page_shapes_section(f, x, document);
    inspect_page_levels_section(f, x, document);
    inspect_page_paper_section(f);
    inspect_page_begin_section(f, "provenance", "Options and files");
    summary_tiles(f, x);
    summary_facts(f, x);
    inspect_page_end_section(f);
    fputs("</main>\n<footer><p>Written by <code>kvcobra inspect --html</code>. All numbers, also those "
          "omitted here, are in <code>kvcobra inspect --json</code>.</p></footer>\n</body></html>\n",
          f);
}
