/* See svg.h: frame, axes and marks. */
#include "tools/page/svg.h"

#include <math.h>

#include "tools/page/html.h"

/* ---- scales ---- */

struct svg_axis svg_axis_of(const char *title, const double *values, size_t n, bool log)
{
    struct svg_axis a = {.title = title, .min = INFINITY, .max = -INFINITY, .log = log};
    double room;

    for (size_t i = 0; i < n; i++)
        if (isfinite(values[i]) && (!log || values[i] > 0)) {
            a.min = fmin(a.min, values[i]);
            a.max = fmax(a.max, values[i]);
        }
    if (!(a.min <= a.max)) {
        a.min = log ? 0.1 : 0;
        a.max = 1;
    } else if (log) {
        a.min = fmax(a.min / 1.15, 1e-300);
        a.max = fmin(a.max * 1.15, 1e300);
    } else {
        room = a.max > a.min ? 0.05 * (a.max - a.min) : fmax(fabs(a.max), 1) * 0.1;
        a.min = fmax(a.min - room, -1e300);
        a.max = fmin(a.max + room, 1e300);
    }

    return a;
}

/* Position of @v between the ends of the axis: 0..1. */
static double svg_share(const struct svg_axis *a, double v)
{
    double s =
        a->log ? log(fmax(v, a->min) / a->min) / log(a->max / a->min) : (v - a->min) / (a->max - a->min);

    return fmin(fmax(s, 0), 1);
}

double svg_x(const struct svg_plot *p, double x)
{
    return p->left + svg_share(&p->x, x) * (p->width - p->left - p->right);
}

double svg_y(const struct svg_plot *p, double y)
{
    return p->height - p->bottom - svg_share(&p->y, y) * (p->height - p->top - p->bottom);
}

/* ---- axes ---- */

/* 1, 2 or 5 times a power of ten, for about @wanted ticks. */
static double svg_nice_step(double range, double wanted)
{
    double raw = range / wanted, power = pow(10, floor(log10(raw))), rest = raw / power;

    if (rest <= 1)
        return power;
    if (rest <= 2)
        return 2 * power;
    return power * (rest <= 5 ? 5 : 10);
}

/* "0.5", "20"; "10⁻⁴" on an axis that spans many decades. */
static void svg_tick_text(FILE *f, const struct svg_axis *a, double v)
{
    static const char *const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    bool wide = a->log && (a->min < 5e-3 || a->max > 2e3);
    double e = wide ? round(log10(v)) : 0;

    if (fabs(e) < 2 || fabs(v / pow(10, e) - 1) > 1e-9) {
        fprintf(f, "%.4g", v);
        return;
    }

    fputs(e < 0 ? "10⁻" : "10", f);
    if (fabs(e) >= 100)
        fputs(digits[(int) fabs(e) / 100], f);
    if (fabs(e) >= 10)
        fputs(digits[(int) fabs(e) / 10 % 10], f);
    fputs(digits[(int) fabs(e) % 10], f);
}

static void svg_tick(const struct svg_plot *p, bool horizontal, double v, bool labelled)
{
    double x = svg_x(p, v), y = svg_y(p, v);

    if (horizontal)
        fprintf(p->f, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                labelled ? "grid" : "fine", x, p->top, x, p->height - p->bottom);
    else
        fprintf(p->f, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                labelled ? "grid" : "fine", p->left, y, p->width - p->right, y);
    if (!labelled)
        return;
    if (horizontal)
        fprintf(p->f, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x,
                p->height - p->bottom + 15);
    else
        fprintf(p->f, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", p->left - 6, y + 4);
    svg_tick_text(p->f, horizontal ? &p->x : &p->y, v);
    fputs("</text>\n", p->f);
}

static double svg_frame_length(const struct svg_plot *p, bool horizontal)
{
    return horizontal ? p->width - p->left - p->right : p->height - p->top - p->bottom;
}

/* Decades; with few of them also 2 and 5 of each; with many only some have labels. */
static void svg_log_ticks(const struct svg_plot *p, bool horizontal, const struct svg_axis *a)
{
    int first = (int) floor(log10(a->min) + 1e-9), last = (int) ceil(log10(a->max) - 1e-9);
    int every = (int) ceil((last - first) / fmax(svg_frame_length(p, horizontal) / 26, 1));

    for (int e = first; e <= last; e++)
        for (int m = 1; m <= 5; m += m == 1 ? 1 : 3) {
            double v = m * pow(10, e);
            bool decade = m == 1, labelled = decade ? (last - e) % every == 0 : last - first <= 3;

            if (v >= a->min * (1 - 1e-9) && v <= a->max * (1 + 1e-9) && (labelled || decade))
                svg_tick(p, horizontal, v, labelled);
        }
}

static void svg_linear_ticks(const struct svg_plot *p, bool horizontal, const struct svg_axis *a)
{
    const double pixels = horizontal ? 70 : 45; /* at least, between two ticks */
    double step = a->every;

    if (step <= 0)
        step = svg_nice_step(a->max - a->min, fmax(svg_frame_length(p, horizontal) / pixels, 2));

    for (double k = ceil(a->min / step - 1e-9), n = 0; n < 64 && k * step <= a->max + 1e-9 * step; k++, n++)
        svg_tick(p, horizontal, k == 0 ? 0 : k * step, true); /* no "-0" */
}

static void svg_draw_axis(const struct svg_plot *p, bool horizontal)
{
    const struct svg_axis *a = horizontal ? &p->x : &p->y;
    double middle = (p->top + p->height - p->bottom) / 2;

    if (a->log)
        svg_log_ticks(p, horizontal, a);
    else
        svg_linear_ticks(p, horizontal, a);
    if (!a->title)
        return;
    if (horizontal)
        fprintf(p->f, "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
                (p->left + p->width - p->right) / 2, p->height - 4);
    else
        fprintf(p->f,
                "<text class=\"axis\" x=\"12\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 12 "
                "%.1f)\">",
                middle, middle);
    html_text(p->f, a->title);
    fputs("</text>\n", p->f);
}

void svg_begin(const struct svg_plot *p, const char *label)
{
    fprintf(p->f, "<svg class=\"plot\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", p->width,
            p->height);
    html_text(p->f, label);
    fputs("\">\n", p->f);
    svg_draw_axis(p, true);
    svg_draw_axis(p, false);
    fprintf(p->f, "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", p->left,
            p->top, p->width - p->left - p->right, p->height - p->top - p->bottom);
}

void svg_end(const struct svg_plot *p)
{
    fputs("</svg>\n", p->f);
}

/* ---- marks ---- */

void svg_line(const struct svg_plot *p, const char *series, const double *x, const double *y, size_t n)
{
    bool drawing = false;

    fprintf(p->f, "<path class=\"line %s\" d=\"", series);
    for (size_t i = 0; i < n; i++) {
        bool here = isfinite(x[i]) && isfinite(y[i]);

        if (here)
            fprintf(p->f, "%c%.1f %.1f", drawing ? 'L' : 'M', svg_x(p, x[i]), svg_y(p, y[i]));
        drawing = here;
    }

    fputs("\"/>\n", p->f);
}

void svg_band(const struct svg_plot *p, const char *series, const double *x, const double *low,
              const double *high, size_t n)
{
    bool drawing = false;

    fprintf(p->f, "<path class=\"band %s\" d=\"", series);
    for (size_t i = 0; i < 2 * n; i++) {
        size_t at = i < n ? i : 2 * n - 1 - i; /* forwards along the top, backwards along the bottom */
        double y = i < n ? high[at] : low[at];

        if (!isfinite(low[at]) || !isfinite(high[at]))
            continue;

        fprintf(p->f, "%c%.1f %.1f", drawing ? 'L' : 'M', svg_x(p, x[at]), svg_y(p, y));
        drawing = true;
    }

    fputs(drawing ? "Z\"/>\n" : "\"/>\n", p->f);
}

void svg_mark_at(FILE *f, const char *series, enum svg_mark mark, double x, double y, double r, bool filled)
{
    const char *open_class = filled ? "" : " open";

    switch (mark) {
    case SVG_CIRCLE:
        fprintf(f, "<circle class=\"mark %s%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>", series, open_class, x,
                y, r);
        return;
    case SVG_TRIANGLE:
        fprintf(f, "<path class=\"mark %s%s\" d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fZ\"/>", series, open_class, x,
                y - 1.2 * r, x + 1.15 * r, y + 0.9 * r, x - 1.15 * r, y + 0.9 * r);
        return;
    case SVG_SQUARE:
        fprintf(f, "<rect class=\"mark %s%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", series,
                open_class, x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
        return;
    case SVG_DIAMOND:
        fprintf(f, "<path class=\"mark %s%s\" d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fZ\"/>", series,
                open_class, x, y - 1.3 * r, x + 1.3 * r, y, x, y + 1.3 * r, x - 1.3 * r, y);
        return;
    case SVG_CROSS:
        fprintf(f, "<path class=\"mark cross %s\" d=\"M%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1f\"/>", series,
                x - r, y - r, x + r, y + r, x - r, y + r, x + r, y - r);
        return;
    }
}

void svg_marker(const struct svg_plot *p, const char *series, enum svg_mark mark, double x, double y,
                double r, bool filled)
{
    if (isfinite(x) && isfinite(y))
        svg_mark_at(p->f, series, mark, svg_x(p, x), svg_y(p, y), r, filled);
}

void svg_label(const struct svg_plot *p, const char *class, double x, double y, const char *anchor,
               const char *text)
{
    fprintf(p->f, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y, anchor);
    html_text(p->f, text);
    fputs("</text>\n", p->f);
}

void svg_line_key(FILE *f, const char *series, const char *text)
{
    fprintf(f,
            "<span class=\"item\"><svg class=\"key\" viewBox=\"0 0 34 14\" width=\"34\" height=\"14\" "
            "aria-hidden=\"true\"><path class=\"line %s\" d=\"M1 7L33 7\"/></svg> %s</span> ",
            series, text);
}
