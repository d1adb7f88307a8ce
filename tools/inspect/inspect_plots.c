/* Figures of calibration statistics; see inspect_plots.h. */
#include "tools/inspect/inspect_plots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/sort.h"
#include "alloc/spectrum.h"
#include "base/cleanup.h"
#include "tools/page/svg.h"

static const char *const side_names[] = {"Keys", "Values"};
static const char *const side_series[] = {"k", "v"};
static const enum svg_mark side_marks[] = {SVG_CIRCLE, SVG_TRIANGLE};

/* A legend entry: the marks of both sides and their meaning. */
static void inspect_plots_key(FILE *f, bool filled, const char *text)
{
    fputs("<span class=\"item\"><svg class=\"key\" viewBox=\"0 0 30 14\" width=\"30\" height=\"14\" "
          "aria-hidden=\"true\">",
          f);
    for (int side = SIDE_K; side <= SIDE_V; side++)
        svg_mark_at(f, side_series[side], side_marks[side], 8 + 14 * side, 7, 4, filled);
    fprintf(f, "</svg> %s</span> ", text);
}

/* ---- spectra ---- */

#define SPECTRUM_FLOOR 1e-5 /* share of the total; smaller shares are drawn at the edge */

/* Shares of the total by index, over the heads of a layer and side: least, middle, largest. */
struct spread {
    double low[GEOMETRY_DIM_MAX], middle[GEOMETRY_DIM_MAX], high[GEOMETRY_DIM_MAX];
};

static void inspect_plots_spread_of(const struct inspection *x, const double *spectra, uint32_t layer,
                                    int side, struct spread *ret)
{
    size_t d = x->g->d;
    uint32_t n_heads = x->g->n_kv_heads;
    double total[GEOMETRY_HEADS_MAX], here[GEOMETRY_HEADS_MAX];

    for (uint32_t head = 0; head < n_heads; head++) {
        const double *w = spectra + head_side_index(x->g, layer, head, (enum side) side) * d;

        total[head] = 0;
        for (size_t i = 0; i < d; i++)
            total[head] += w[i];
    }

    for (size_t i = 0; i < d; i++) {
        for (uint32_t head = 0; head < n_heads; head++)
            here[head] = total[head] > 0
                             ? fmax(spectra[head_side_index(x->g, layer, head, (enum side) side) * d + i] /
                                        total[head],
                                    SPECTRUM_FLOOR)
                             : SPECTRUM_FLOOR;
        sort_doubles(here, n_heads);
        ret->low[i] = here[0];
        ret->middle[i] = here[n_heads / 2];
        ret->high[i] = here[n_heads - 1];
    }
}

static void inspect_plots_draw_layer(FILE *f, const struct inspection *x, const double *spectra,
                                     uint32_t layer)
{
    struct svg_plot p = {.f = f,
                         .width = 172,
                         .height = 124,
                         .left = 30,
                         .right = 10,
                         .top = 17,
                         .bottom = 19,
                         .x = {.min = 1, .max = x->g->d, .every = x->g->d / 2.0},
                         .y = {.min = SPECTRUM_FLOOR, .max = 1, .log = true}};
    double at[GEOMETRY_DIM_MAX];
    struct spread spread;
    char label[32];

    for (size_t i = 0; i < x->g->d; i++)
        at[i] = (double) i + 1;
    (void) snprintf(label, sizeof(label), "layer %u", layer);
    svg_begin(&p, label);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        inspect_plots_spread_of(x, spectra, layer, side, &spread);
        svg_band(&p, side_series[side], at, spread.low, spread.high, x->g->d);
        svg_line(&p, side_series[side], at, spread.middle, x->g->d);
    }

    svg_label(&p, "panel", p.left, 12, "start", label);
    svg_end(&p);
}

void plot_spectra(FILE *f, const struct inspection *x, const double *spectra)
{
    if (x->g->n_layers > 256) {
        fprintf(
            f,
            "<p class=\"note\">%u layers need too many charts for a page; the spectra are in the JSON.</p>\n",
            x->g->n_layers);
        return;
    }

    fputs("<p class=\"legend\">", f);
    svg_line_key(f, "k", "keys");
    svg_line_key(f, "v", "values");
    fputs("<span class=\"item\">shaded: range of the heads. Horizontal: direction, from 1. Vertical: its "
          "share of the total, one line per factor of ten.</span></p>\n<div class=\"multiples\">\n",
          f);
    for (uint32_t layer = 0; layer < x->g->n_layers; layer++)
        inspect_plots_draw_layer(f, x, spectra, layer);
    fputs("</div>\n", f);
}

/* ---- one number per head ---- */

/* Horizontal position of a head within the width of its layer. */
static double inspect_plots_place(const struct geometry *g, uint32_t layer, uint32_t head)
{
    return layer + (g->n_kv_heads > 1 ? 0.56 * (head / (g->n_kv_heads - 1.0) - 0.5) : 0);
}

static double inspect_plots_mark_size(const struct geometry *g)
{
    double n = (double) g->n_layers * g->n_kv_heads;

    if (n <= 128)
        return 3.2;
    return n <= 512 ? 2.2 : 1.4;
}

/* The values of one side, [heads of all layers], of an array by head-side. */
static double *inspect_plots_of_side(const struct inspection *x, const double *by_head_side, int side)
{
    uint32_t n = head_side_count(x->g) / 2;
    double *value = calloc(n, sizeof(*value));

    for (uint32_t i = 0; value && i < n; i++)
        value[i] = by_head_side[2 * i + (uint32_t) side];
    return value;
}

/* Open marks for @before, filled marks for @after, connected by a line. @y: axis for both sides. */
static void inspect_plots_draw_pairs(FILE *f, const struct inspection *x, const double *before,
                                     const double *after, int side, const struct svg_axis *y,
                                     const char *label)
{
    struct svg_plot p = {.f = f,
                         .width = 520,
                         .height = 250,
                         .left = 62,
                         .right = 10,
                         .top = 10,
                         .bottom = 36,
                         .x = {.title = "layer", .min = -0.7, .max = x->g->n_layers - 0.3},
                         .y = *y};
    double r = inspect_plots_mark_size(x->g);

    p.x.every = x->g->n_layers <= 10 ? 1 : 0;
    svg_begin(&p, label);
    for (uint32_t i = 0; i < x->g->n_layers * x->g->n_kv_heads; i++) {
        double at = inspect_plots_place(x->g, i / x->g->n_kv_heads, i % x->g->n_kv_heads), ends[2] = {at, at};

        if (before) {
            double both[2] = {before[i], after[i]};

            svg_line(&p, "link", ends, both, 2);
            svg_marker(&p, side_series[side], side_marks[side], at, before[i], r, false);
        }

        svg_marker(&p, side_series[side], side_marks[side], at, after[i], r, true);
    }

    svg_end(&p);
}

/* Two panels, keys and values, on one scale. @before may be NULL. Both are numbered by head-side. */
static void inspect_plots_draw_heads(FILE *f, const struct inspection *x, const double *before,
                                     const double *after, const char *title, bool log)
{
    uint32_t n_hs = head_side_count(x->g);
    _cleanup_(freep) double *all = calloc(2 * (size_t) n_hs, sizeof(*all));
    struct svg_axis y;

    if (n_hs / 2 > SVG_HEAT_CELLS) {
        fprintf(
            f,
            "<p class=\"note\">%u heads need too many marks for a page; the numbers are in the JSON.</p>\n",
            n_hs / 2);
        return;
    }

    if (!all)
        return;

    memcpy(all, after, n_hs * sizeof(*all));
    memcpy(all + n_hs, before ? before : after, n_hs * sizeof(*all));
    y = svg_axis_of(title, all, 2 * (size_t) n_hs, log);
    fputs("<div class=\"panels\">\n", f);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        _cleanup_(freep) double *old = before ? inspect_plots_of_side(x, before, side) : NULL;
        _cleanup_(freep) double *new = inspect_plots_of_side(x, after, side);

        fprintf(f, "<div><h4>%s</h4>\n", side_names[side]);
        if (new && (old || !before))
            inspect_plots_draw_pairs(f, x, old, new, side, &y, side_names[side]);
        fputs("</div>\n", f);
    }

    fputs("</div>\n", f);
}

static void inspect_plots_pair_legend(FILE *f, const char *open, const char *filled)
{
    fputs("<p class=\"legend\">", f);
    inspect_plots_key(f, false, open);
    inspect_plots_key(f, true, filled);
    fputs("<span class=\"item\">one mark per head</span></p>\n", f);
}

void plot_alpha(FILE *f, const struct inspection *x)
{
    uint32_t n_hs = head_side_count(x->g);
    _cleanup_(freep) double *alpha = calloc(n_hs, sizeof(*alpha));

    for (uint32_t hs = 0; alpha && hs < n_hs; hs++)
        alpha[hs] = spectrum_power_law(x->lambda + (size_t) hs * x->g->d, x->g->d);
    if (alpha)
        inspect_plots_draw_heads(f, x, NULL, alpha, "power-law exponent", false);
}

void plot_distortion(FILE *f, const struct inspection *x)
{
    inspect_plots_draw_heads(f, x, x->distortion_equal, x->distortion, "distortion e′Me per token", true);
    inspect_plots_pair_legend(f, "the same budget for every head and side", "as solved");
}

/* ---- Gaussianity ---- */

void plot_kurtosis_heads(FILE *f, const struct inspection *x)
{
    uint32_t n_hs = head_side_count(x->g);
    _cleanup_(freep) double *values = calloc(2 * (size_t) n_hs, sizeof(*values));

    for (uint32_t hs = 0; values && hs < n_hs; hs++) {
        values[hs] = x->shapes[hs].kurtosis[SHAPE_BASIS];
        values[n_hs + hs] = x->shapes[hs].kurtosis[SHAPE_BANDS];
    }

    if (!values)
        return;

    inspect_plots_draw_heads(f, x, values, values + n_hs, "median excess kurtosis", false);
    inspect_plots_pair_legend(f, "before rotation", "after rotation in bands of 8");
}

static void inspect_plots_histogram_line(const struct svg_plot *p, const struct kurtosis_summary *k,
                                         const char *series)
{
    double at[2 * KURTOSIS_BINS], share[2 * KURTOSIS_BINS];

    for (int i = 0; i < KURTOSIS_BINS; i++) { /* steps */
        at[2 * i] = KURTOSIS_MIN + i * KURTOSIS_BIN;
        at[2 * i + 1] = at[2 * i] + KURTOSIS_BIN;
        share[2 * i] = share[2 * i + 1] = k->n > 0 ? (double) k->bins[i] / (double) k->n : 0;
    }

    svg_line(p, series, at, share, 2 * KURTOSIS_BINS);
}

void plot_kurtosis(FILE *f, const struct inspection *x, enum shape_stage before, enum shape_stage after)
{
    struct svg_plot p = {.f = f,
                         .width = 520,
                         .height = 210,
                         .left = 68,
                         .right = 12,
                         .top = 10,
                         .bottom = 36,
                         .x = {.title = "excess kurtosis (last step: all larger values)",
                               .min = KURTOSIS_MIN,
                               .max = KURTOSIS_MIN + KURTOSIS_BINS * KURTOSIS_BIN,
                               .every = 1},
                         .y = {.title = "share of coordinates"}};

    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (int i = 0; i < KURTOSIS_BINS; i++)
            for (int stage = 0; stage < 2; stage++) {
                const struct kurtosis_summary *k = &x->kurtosis[side][stage ? after : before];

                p.y.max = fmax(p.y.max, k->n > 0 ? 1.05 * (double) k->bins[i] / (double) k->n : 0);
            }
    p.y.max = p.y.max > 0 ? p.y.max : 1;
    fputs("<div class=\"panels\">\n", f);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        fprintf(f, "<div><h4>%s</h4>\n", side_names[side]);
        svg_begin(&p, side_names[side]);
        inspect_plots_histogram_line(&p, &x->kurtosis[side][before], "before");
        inspect_plots_histogram_line(&p, &x->kurtosis[side][after], side_series[side]);
        svg_end(&p);
        fputs("</div>\n", f);
    }

    fputs("</div>\n<p class=\"legend\">", f);
    svg_line_key(f, "before", "before rotation");
    svg_line_key(f, "k", "keys after rotation");
    svg_line_key(f, "v", "values after rotation");
    fputs("</p>\n", f);
}

void plot_qq(FILE *f, const struct inspection *x)
{
    struct svg_plot p = {.f = f,
                         .width = 520,
                         .height = 400,
                         .left = 58,
                         .right = 12,
                         .top = 10,
                         .bottom = 38,
                         .x = {.title = "quantile of N(0,1)", .min = -4, .max = 4, .every = 1},
                         .y = {.title = "quantile of the coordinates", .min = -6, .max = 6, .every = 2}};
    double normal[INSPECT_QQ], diagonal[2] = {-4, 4};

    for (int i = 0; i < INSPECT_QQ; i++)
        normal[i] = inspect_qq_normal(i);
    fputs("<div class=\"panels\">\n", f);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        fprintf(f, "<div><h4>%s</h4>\n", side_names[side]);
        svg_begin(&p, side_names[side]);
        svg_line(&p, "diagonal", diagonal, diagonal, 2);
        for (int stage = SHAPE_BASIS; stage <= SHAPE_BANDS; stage++) {
            double q[INSPECT_QQ];

            for (int i = 0; i < INSPECT_QQ; i++) {
                q[i] = inspect_qq(x, (enum side) side, (enum shape_stage) stage, i);
                if (stage == SHAPE_BANDS && i % 2 == 0)
                    svg_marker(&p, side_series[side], side_marks[side], normal[i], q[i], 3, true);
            }

            svg_line(&p, stage == SHAPE_BASIS ? "before" : side_series[side], normal, q, INSPECT_QQ);
        }

        svg_end(&p);
        fputs("</div>\n", f);
    }

    fputs("</div>\n<p class=\"legend\">", f);
    svg_line_key(f, "diagonal", "N(0,1)");
    svg_line_key(f, "before", "before rotation");
    inspect_plots_key(f, true, "after rotation in bands of 8");
    fputs("</p>\n", f);
}

/* ---- rate-distortion curves ---- */

static const struct {
    const char *series;
    enum svg_mark mark;
} method_looks[INSPECT_METHODS] = {
    [CURVE_OF_BANDS] = {"s0", SVG_CIRCLE},    [CURVE_OF_EQUAL] = {"s1", SVG_SQUARE},
    [CURVE_OF_DP] = {"s2", SVG_TRIANGLE},     [CURVE_OF_PAPER_KL] = {"s3", SVG_DIAMOND},
    [CURVE_OF_PAPER_MSE] = {"s4", SVG_CROSS},
};

/* Points of one method in ascending budgets. Return: their number. */
static size_t inspect_plots_points_of(const struct inspection *x, int method, double *ret_bpd,
                                      double *ret_distortion)
{
    size_t n = 0;

    for (size_t i = (size_t) method; i < x->n_points; i += INSPECT_METHODS) {
        const struct rate_point *p = &x->points[i];
        double distortion = p->distortion[SIDE_K] + p->distortion[SIDE_V];

        if (p->solved && distortion > 0) {
            ret_bpd[n] = p->bpd;
            ret_distortion[n++] = distortion;
        }
    }

    return n;
}

static double inspect_plots_table_distortion(const struct inspection *x)
{
    double sum = 0;

    for (uint32_t hs = 0; x->table && x->distortion && hs < head_side_count(x->g); hs++)
        sum += x->distortion[hs];
    return sum;
}

/* Labels at the right ends of the lines, moved apart so that they do not overlap. */
static void inspect_plots_label_ends(const struct svg_plot *p, const double *end, const bool *has)
{
    int order[INSPECT_METHODS], n = 0;
    double last = -1e9;

    for (int m = 0; m < INSPECT_METHODS; m++)
        if (has[m]) {
            int to = n++;

            for (; to > 0 && end[order[to - 1]] > end[m]; to--)
                order[to] = order[to - 1];
            order[to] = m;
        }
    for (int i = 0; i < n; i++) {
        double y = fmax(end[order[i]], last + 15);

        svg_mark_at(p->f, method_looks[order[i]].series, method_looks[order[i]].mark,
                    p->width - p->right + 14, y, 4, true);
        svg_label(p, "name", p->width - p->right + 23, y + 4, "start",
                  inspect_method_name((enum inspect_method) order[i]));
        last = y;
    }
}

void plot_curves(FILE *f, const struct inspection *x)
{
    struct svg_plot p = {
        .f = f, .width = 600, .height = 340, .left = 62, .right = 176, .top = 12, .bottom = 40};
    _cleanup_(freep) double *all = calloc(2 * (x->n_points + 1), sizeof(*all));
    double bpd[INSPECT_BUDGETS_MAX], distortion[INSPECT_BUDGETS_MAX], end[INSPECT_METHODS] = {0},
                                                                      own = inspect_plots_table_distortion(x);
    bool has[INSPECT_METHODS] = {false};
    size_t n = 0;

    if (!all)
        return;

    for (size_t i = 0; i < x->n_points; i++)
        if (x->points[i].solved) {
            all[n] = x->points[i].bpd;
            all[x->n_points + 1 + n++] = x->points[i].distortion[SIDE_K] + x->points[i].distortion[SIDE_V];
        }
    if (own > 0) {
        all[n] = inspection_charged(x);
        all[x->n_points + 1 + n++] = own;
    }

    p.x = svg_axis_of("bits charged per number", all, n, false);
    if (p.x.max - p.x.min < 1) { /* one budget: a range of hundredths of a bit would mislead */
        double middle = (p.x.max + p.x.min) / 2;

        p.x.min = middle - 0.5;
        p.x.max = middle + 0.5;
    }

    p.y = svg_axis_of("distortion e′Me per token, all layers", all + x->n_points + 1, n, true);
    fputs("<div class=\"wide\">", f);
    svg_begin(&p, "Distortion by bits per number, one line per method");
    for (int m = INSPECT_METHODS - 1; m >= 0; m--) { /* the first method is drawn last, on top */
        size_t k = inspect_plots_points_of(x, m, bpd, distortion);

        svg_line(&p, method_looks[m].series, bpd, distortion, k);
        for (size_t i = 0; i < k; i++)
            svg_marker(&p, method_looks[m].series, method_looks[m].mark, bpd[i], distortion[i], 4, true);
        has[m] = k > 0;
        end[m] = k > 0 ? svg_y(&p, distortion[k - 1]) : 0;
    }

    if (own > 0) {
        svg_mark_at(f, "own", SVG_CIRCLE, svg_x(&p, inspection_charged(x)), svg_y(&p, own), 9, false);
        svg_label(&p, "name", svg_x(&p, inspection_charged(x)) - 10, svg_y(&p, own) + 20, "end",
                  "this table");
    }

    inspect_plots_label_ends(&p, end, has);
    svg_end(&p);
    fputs("</div>\n", f);
}
