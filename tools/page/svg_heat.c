/* Maps of layers and heads: one cell per head, coloured by a ramp and with its number printed. See svg.h. */
#include "tools/page/svg.h"

#include <math.h>

#include "tools/page/html.h"

enum { CELL_W = 31, CELL_H = 30, LEFT = 54, TOP = 20 };

unsigned svg_heat_step(double x, double min, double max)
{
    double s = max > min ? (x - min) / (max - min) * SVG_RAMP : 0;

    return (unsigned) fmin(fmax(s, 0), SVG_RAMP - 1);
}

/* @format: a literal of the caller, for one double. */
static void svg_heat_number(FILE *f, const char *format, double x)
{
    if (isfinite(x))
        fprintf(f, format, x);
    else
        fputs("–", f);
}

static void svg_heat_cell(FILE *f, const struct svg_heat *h, const char *name, uint32_t layer, uint32_t head,
                          double x, double y)
{
    size_t i = (size_t) layer * h->n_heads + head;
    unsigned step = svg_heat_step(h->value[i], h->min, h->max);
    bool known = isfinite(h->value[i]);

    if (known)
        fprintf(f, "<g class=\"cell q%u\">", step);
    else
        fputs("<g class=\"cell none\">", f);
    fprintf(f, "<title>%s, layer %u, head %u: ", name, layer, head);
    svg_heat_number(f, h->format, h->printed[i]);
    if (h->small) {
        fputs("; ", f);
        svg_heat_number(f, h->small_format, h->small[i]);
    }

    fprintf(f, "</title><rect x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"%d\"/>", x, y, CELL_W, CELL_H);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">", x + CELL_W / 2.0, y + (h->small ? 13 : 19));
    svg_heat_number(f, h->format, h->printed[i]);
    if (h->small) {
        fprintf(f, "</text><text class=\"small\" x=\"%.1f\" y=\"%.1f\">", x + CELL_W / 2.0, y + 25);
        svg_heat_number(f, h->small_format, h->small[i]);
    }

    fputs("</text></g>\n", f);
}

/* The layers from @first on, up to SVG_HEAT_COLUMNS of them. */
static void svg_heat_strip(FILE *f, const struct svg_heat *h, const char *name, uint32_t first)
{
    uint32_t last = h->n_layers - first < SVG_HEAT_COLUMNS ? h->n_layers : first + SVG_HEAT_COLUMNS;
    uint32_t columns = h->n_layers < SVG_HEAT_COLUMNS ? h->n_layers : SVG_HEAT_COLUMNS;
    int width = LEFT + (int) columns * CELL_W + 2;

    fprintf(f,
            "<svg class=\"heat\" style=\"max-width:%dpx\" viewBox=\"0 0 %d %.0f\" role=\"img\" "
            "aria-label=\"%s by head, layers %u to %u\">\n",
            width + width / 10, width, TOP + h->n_heads * (double) CELL_H + 4, name, first, last - 1);
    for (uint32_t layer = first; layer < last; layer++)
        fprintf(f, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%u</text>",
                LEFT + (layer - first + 0.5) * CELL_W, TOP - 5, layer);
    fprintf(f, "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">layer</text>\n", LEFT - 6,
            TOP - 5);
    for (uint32_t head = 0; head < h->n_heads; head++) {
        double y = TOP + head * (double) CELL_H;

        fprintf(f, "<text class=\"tick\" x=\"%d\" y=\"%.0f\" text-anchor=\"end\">head %u</text>\n", LEFT - 6,
                y + 19, head);
        for (uint32_t layer = first; layer < last; layer++)
            svg_heat_cell(f, h, name, layer, head, LEFT + (layer - first) * (double) CELL_W, y);
    }

    fputs("</svg>\n", f);
}

void svg_heat(FILE *f, const struct svg_heat *h, const char *name)
{
    if ((uint64_t) h->n_layers * h->n_heads > SVG_HEAT_CELLS) {
        fprintf(f,
                "<p class=\"note\">%s: %u layers of %u heads need too many cells for a page; the numbers are "
                "in the JSON.</p>\n",
                name, h->n_layers, h->n_heads);
        return;
    }

    fputs("<div class=\"maps\">\n", f);
    for (uint32_t first = 0; first < h->n_layers; first += SVG_HEAT_COLUMNS)
        svg_heat_strip(f, h, name, first);
    fputs("</div>\n", f);
}

void svg_heat_legend(FILE *f, double min, double max, const char *format, const char *what)
{
    fputs("<p class=\"legend\"><svg class=\"ramp\" viewBox=\"0 0 270 14\" width=\"270\" height=\"14\" "
          "aria-hidden=\"true\">",
          f);
    for (int i = 0; i < SVG_RAMP; i++)
        fprintf(f, "<g class=\"cell q%d\"><rect x=\"%d\" y=\"0\" width=\"30\" height=\"14\"/></g>", i,
                i * 30);
    fputs("</svg> <span>", f);
    svg_heat_number(f, format, min);
    fputs(" (left) to ", f);
    svg_heat_number(f, format, max);
    fprintf(f, " (right): %s</span></p>\n", what);
}
