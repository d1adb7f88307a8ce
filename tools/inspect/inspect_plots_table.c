/* Plots of an allocation table; see inspect_plots.h. */
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "tools/page/html.h"
#include "tools/inspect/inspect_plots.h"
#include "tools/page/svg.h"

static const char *const side_names[] = {"Keys", "Values"};

/* ---- maps ---- */

static double plots_table_largest(const double *x, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    return most;
}

/* [2, layers * heads] by side: one number of every codec. NULL when out of memory: the plot is omitted. */
static double *plots_table_by_side(const struct inspection *x,
                                   double number(const struct table *, const struct codec *))
{
    uint32_t n = head_side_count(x->g);
    double *value = calloc(n, sizeof(*value));

    for (uint32_t hs = 0; value && hs < n; hs++)
        value[hs % 2 * (n / 2) + hs / 2] = number(x->table, &x->table->codecs[hs]);
    return value;
}

static double plots_table_coordinates_of(const struct table *t, const struct codec *c)
{
    (void) t;
    return inspect_codec_stored(c);
}

static double plots_table_mean_bits_of(const struct table *t, const struct codec *c)
{
    (void) t;
    return inspect_codec_mean_bits(c);
}

static double plots_table_bpd_of(const struct table *t, const struct codec *c)
{
    return (double) c->code_bits / t->geometry.d;
}

static void plots_table_draw_maps(FILE *f, const struct svg_heat *heat, const double *small)
{
    size_t n = (size_t) heat->n_layers * heat->n_heads;

    for (int side = SIDE_K; side <= SIDE_V; side++) {
        struct svg_heat h = *heat;

        h.value = h.printed = heat->value + (size_t) side * n;
        h.small = small ? small + (size_t) side * n : NULL;
        fprintf(f, "<h4>%s</h4>\n", side_names[side]);
        svg_heat(f, &h, side_names[side]);
    }
}

void plot_ranks(FILE *f, const struct inspection *x)
{
    _cleanup_(freep) double *ranks = plots_table_by_side(x, plots_table_coordinates_of);
    _cleanup_(freep) double *bits = plots_table_by_side(x, plots_table_mean_bits_of);
    struct svg_heat heat = {.n_layers = x->g->n_layers,
                            .n_heads = x->g->n_kv_heads,
                            .value = ranks,
                            .format = "%.0f",
                            .small_format = "%.1fb",
                            .max = x->g->d};

    if (!ranks || !bits)
        return;

    plots_table_draw_maps(f, &heat, bits);
    svg_heat_legend(f, 0, heat.max, "%.0f", "stored coordinates; below each, their mean width in bits");
}

void plot_budgets(FILE *f, const struct inspection *x)
{
    _cleanup_(freep) double *bpd = plots_table_by_side(x, plots_table_bpd_of);
    struct svg_heat heat = {
        .n_layers = x->g->n_layers, .n_heads = x->g->n_kv_heads, .value = bpd, .format = "%.2f"};

    if (!bpd)
        return;

    heat.max = fmax(1, plots_table_largest(bpd, head_side_count(x->g)));
    plots_table_draw_maps(f, &heat, NULL);
    svg_heat_legend(f, 0, heat.max, "%.2f", "stored bits per original number");
}

/* ---- widths by layer ---- */

/* Stored coordinates of a layer and side at each width. */
static void plots_table_count_layer(const struct table *t, uint32_t layer, int side,
                                    unsigned ret[TABLE_BITS_MAX + 1])
{
    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++)
        ret[b] = 0;
    for (uint32_t head = 0; head < t->geometry.n_kv_heads; head++) {
        const struct codec *c = table_codec(t, layer, head, (enum side) side);

        for (unsigned i = 0; i < c->n_half; i++)
            ret[c->bits[i]] += 8;
    }
}

/* A bar of a layer: the widest codes at the bottom. */
static void plots_table_draw_stack(const struct svg_plot *p, const struct table *t, uint32_t layer, int side)
{
    unsigned count[TABLE_BITS_MAX + 1];
    double below = 0, total = (double) t->geometry.n_kv_heads * t->geometry.d;
    double left = svg_x(p, layer - 0.42), right = svg_x(p, layer + 0.42);

    plots_table_count_layer(t, layer, side, count);
    for (unsigned b = TABLE_BITS_MAX; b > 0; b--) {
        double above = below + count[b] / total;

        if (count[b] > 0)
            fprintf(p->f,
                    "<g class=\"cell q%u\"><title>layer %u: %u coordinates of %u bits</title><rect "
                    "x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></g>\n",
                    b, layer, count[b], b, left, svg_y(p, above), right - left,
                    svg_y(p, below) - svg_y(p, above));
        below = above;
    }
}

static void plots_table_width_legend(FILE *f)
{
    fputs("<p class=\"legend\">Bits of a coordinate:", f);
    for (unsigned b = TABLE_BITS_MAX; b > 0; b--)
        fprintf(f,
                " <svg class=\"key\" viewBox=\"0 0 22 18\" width=\"22\" height=\"18\" role=\"img\" "
                "aria-label=\"%u\"><g class=\"cell q%u\"><rect width=\"22\" height=\"18\"/><text x=\"11\" "
                "y=\"13\">%u</text></g></svg>",
                b, b, b);
    fputs("; white above: not stored.</p>\n", f);
}

void plot_widths(FILE *f, const struct inspection *x)
{
    struct svg_plot p = {.f = f,
                         .width = 520,
                         .height = 230,
                         .left = 62,
                         .right = 10,
                         .top = 12,
                         .bottom = 36,
                         .x = {.title = "layer", .min = -0.7, .max = x->g->n_layers - 0.3},
                         .y = {.title = "share of the coordinates", .max = 1, .every = 0.25}};

    p.x.every = x->g->n_layers <= 10 ? 1 : 0;
    fputs("<div class=\"panels\">\n", f);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        fprintf(f, "<div><h4>%s</h4>\n", side_names[side]);
        svg_begin(&p, side == SIDE_K ? "Keys: widths of coordinates by layer"
                                     : "Values: widths of coordinates by layer");
        for (uint32_t layer = 0; layer < x->g->n_layers; layer++)
            plots_table_draw_stack(&p, x->table, layer, side);
        svg_end(&p);
        fputs("</div>\n", f);
    }

    fputs("</div>\n", f);
    plots_table_width_legend(f);
}

/* ---- levels ---- */

/* One width: levels as long strokes, thresholds as short ones; from 5 bits on and with a trellis levels
 * alone. */
static void plots_table_draw_levels(const struct svg_plot *p, const struct levels *l, unsigned b,
                                    const char *series)
{
    double y = svg_y(p, b), half = b <= 4 ? 9 : 6;
    char name[16];

    (void) snprintf(name, sizeof(name), "%u bit%s", b, b > 1 ? "s" : "");
    svg_label(p, "tick", p->left - 8, y + 4, "end", name);
    fprintf(p->f, "<line class=\"fine\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", p->left, y,
            p->width - p->right, y);
    fprintf(p->f, "<path class=\"stroke %s\" d=\"", series);
    for (unsigned q = 0; q < levels_count(l, b); q++) {
        double z = (double) l->value[q] * (double) l->step;

        if (z >= p->x.min && z <= p->x.max)
            fprintf(p->f, "M%.1f %.1fv%.1f", svg_x(p, z), y - half, 2 * half);
    }

    fputs("\"/>", p->f);
    if (b <= 4 && l->state_bits == 0) {
        fputs("<path class=\"stroke threshold\" d=\"", p->f);
        for (unsigned q = 0; q + 1 < 1u << b; q++)
            if (fabs((double) l->threshold[q]) <= p->x.max)
                fprintf(p->f, "M%.1f %.1fv8", svg_x(p, (double) l->threshold[q]), y - 4);
        fputs("\"/>", p->f);
    }

    putc('\n', p->f);
}

void plot_levels(FILE *f, const struct inspection *x)
{
    struct svg_plot p = {
        .f = f,
        .width = 520,
        .height = 270,
        .left = 56,
        .right = 12,
        .top = 10,
        .bottom = 36,
        .x = {.title = "standard deviations of the coordinate", .min = -5, .max = 5, .every = 1},
        .y = {.min = 0.4, .max = TABLE_BITS_MAX + 0.6, .every = 100}};

    fputs("<div class=\"panels\">\n", f);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        fprintf(f, "<div><h4>%s</h4>\n", side_names[side]);
        svg_begin(&p, side == SIDE_K ? "Keys: levels and thresholds" : "Values: levels and thresholds");
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            plots_table_draw_levels(&p, &x->table->levels[side][b], b, side == SIDE_K ? "k" : "v");
        svg_end(&p);
        fputs("</div>\n", f);
    }

    fputs("</div>\n<p class=\"legend\">Long strokes: levels. Short strokes: thresholds between them (up to 4 "
          "bits, without a trellis). Levels beyond 5 standard deviations are in the table of numbers.</p>\n",
          f);
}

/* ---- bytes ---- */

enum { ITEMS = 5 };
static const struct {
    const char *name, *class;
} items[ITEMS] = {
    {"codes", "b0"},
    {"padding", "b1"},
    {"headers", "b2"},
    {"exact first tokens", "b3"},
    {"exact newest tokens", "b4"},
};

/* A bar of bits per number. */
static void plots_table_draw_bar(const struct svg_plot *p, const struct inspection *x, uint64_t tokens,
                                 double top, double height)
{
    struct sequence_bytes b;
    uint64_t bytes[ITEMS];
    double per_number, left = 0;
    char text[64];

    inspection_bytes(x, tokens, &b);
    bytes[0] = b.codes;
    bytes[1] = b.padding;
    bytes[2] = b.headers;
    bytes[3] = b.sinks;
    bytes[4] = b.tail;
    per_number = b.total > 0 ? b.bpd_true / (double) b.total : 0;
    (void) snprintf(text, sizeof(text), "%ju tokens", (uintmax_t) tokens);
    svg_label(p, "tick", p->left - 8, top + height / 2 + 4, "end", text);
    for (int i = 0; i < ITEMS; i++) {
        double width = (double) bytes[i] * per_number;

        fprintf(p->f,
                "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%s: %ju "
                "bytes, %.4g bits per number</title></rect>",
                items[i].class, svg_x(p, left), top, svg_x(p, left + width) - svg_x(p, left), height,
                items[i].name, (uintmax_t) bytes[i], width);
        left += width;
    }

    (void) snprintf(text, sizeof(text), "%.2f", b.bpd_true);
    svg_label(p, "value", svg_x(p, left) + 6, top + height / 2 + 4, "start", text);
}

void plot_bytes(FILE *f, const struct inspection *x)
{
    struct svg_plot p = {.f = f,
                         .width = 560,
                         .height = 268,
                         .left = 126,
                         .right = 12,
                         .top = 8,
                         .bottom = 38,
                         .x = {.title = "bits held per original number (binary16: 16)"},
                         .y = {.min = 0.1, .max = 1, .every = 9}};
    struct sequence_bytes b;

    for (int i = 0; i < INSPECT_CONTEXTS; i++) {
        inspection_bytes(x, inspect_contexts[i], &b);
        p.x.max = fmax(p.x.max, b.bpd_true * 1.12); /* room for the number */
    }

    if (!(p.x.max > 0))
        p.x.max = 1;
    fputs("<div class=\"wide\">", f);
    svg_begin(&p, "Bits held per number at several context lengths, by purpose");
    for (int i = 0; i < INSPECT_CONTEXTS; i++)
        plots_table_draw_bar(&p, x, inspect_contexts[i], 14 + i * 36, 26);
    svg_end(&p);
    fputs("</div>\n<p class=\"legend\">", f);
    for (int i = 0; i < ITEMS; i++)
        fprintf(f,
                "<span class=\"item\"><svg class=\"key\" viewBox=\"0 0 22 14\" width=\"22\" height=\"14\" "
                "aria-hidden=\"true\"><rect class=\"%s\" width=\"22\" height=\"14\"/></svg> %s</span> ",
                items[i].class, items[i].name);
    fputs("</p>\n", f);
}
