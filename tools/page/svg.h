/*
 * Charts as inline SVG: a frame with axes, and marks in its coordinates. Colours, dashes and fonts come from
 * the page's style sheet by class (html_style.c), so that light, dark and print need no second drawing.
 *
 * Titles and labels go through html_text().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct svg_axis {
    const char *title;
    double min, max; /* min < max; log: both above 0 */
    bool log;
    double every; /* distance of ticks; 0: automatic. Not for log */
};

struct svg_plot {
    FILE *f;
    double width, height;            /* of the picture, in CSS pixels at full size */
    double left, right, top, bottom; /* margins around the frame */
    struct svg_axis x, y;
};

/* The range of the finite @values with some room; with @log, of the values above 0. Without any: 0..1. */
struct svg_axis svg_axis_of(const char *title, const double *values, size_t n, bool log);

/* Opens the element and draws frame, grid, ticks and titles. @label: text for screen readers. */
void svg_begin(const struct svg_plot *p, const char *label);
void svg_end(const struct svg_plot *p);

/* Picture coordinates of a value; values outside the frame are moved to its edge. */
double svg_x(const struct svg_plot *p, double x);
double svg_y(const struct svg_plot *p, double y);

/* Lines through points in class @series; a point that is not finite breaks the line. */
void svg_line(const struct svg_plot *p, const char *series, const double *x, const double *y, size_t n);

/* The area between two lines. */
void svg_band(const struct svg_plot *p, const char *series, const double *x, const double *low,
              const double *high, size_t n);

enum svg_mark { SVG_CIRCLE, SVG_TRIANGLE, SVG_SQUARE, SVG_DIAMOND, SVG_CROSS };

/* One mark of size 2 @r; nothing if not finite. @filled or with a hole. */
void svg_marker(const struct svg_plot *p, const char *series, enum svg_mark mark, double x, double y,
                double r, bool filled);

/* A mark anywhere, in picture coordinates; for legends too. */
void svg_mark_at(FILE *f, const char *series, enum svg_mark mark, double x, double y, double r, bool filled);

/* Text in picture coordinates; @anchor: start, middle, end. */
void svg_label(const struct svg_plot *p, const char *class, double x, double y, const char *anchor,
               const char *text);

/* An entry of a legend below a picture: the line of @series and its name. */
void svg_line_key(FILE *f, const char *series, const char *text);

/* ---- maps of layers and heads (svg_heat.c) ---- */

#define SVG_RAMP 9           /* steps of the colour ramp: classes q0 (least) to q8 */
#define SVG_HEAT_CELLS 16384 /* most cells that are drawn: more are not readable */
#define SVG_HEAT_COLUMNS 10  /* layers of a picture: 364 pixels, the width of a telephone */

struct svg_heat {
    uint32_t n_layers, n_heads;
    const double *value;               /* [n_layers, n_heads], the colour; not finite: hatched */
    const double *printed;             /* the same shape: the number in the cell; may be @value */
    const double *small;               /* a second number below it, or NULL */
    const char *format, *small_format; /* printf of one double */
    double min, max;                   /* of the ramp */
};

/* Layers along x, heads down, in pictures that stand beside or below each other. @name: "Keys", for cells and
 * screen readers. */
void svg_heat(FILE *f, const struct svg_heat *h, const char *name);

/* The ramp with its ends, as a picture of its own. */
void svg_heat_legend(FILE *f, double min, double max, const char *format, const char *what);

/* The step of the ramp of @x. */
unsigned svg_heat_step(double x, double min, double max);
