/* Charts: positions of marks, and valid pictures for all numbers. */
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/page/svg.h"

/* A frame of 100 x 100 at (10, 10). */
static struct svg_plot square(FILE *f)
{
    return (struct svg_plot){.f = f,
                             .width = 120,
                             .height = 120,
                             .left = 10,
                             .right = 10,
                             .top = 10,
                             .bottom = 10,
                             .x = {.max = 10},
                             .y = {.min = 1, .max = 100, .log = true}};
}

static void test_scales(void)
{
    struct svg_plot p = square(NULL);

    CU_ASSERT_DOUBLE_EQUAL(svg_x(&p, 0), 10, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(svg_x(&p, 2.5), 35, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(svg_y(&p, 1), 110, 1e-12); /* upwards is smaller */
    CU_ASSERT_DOUBLE_EQUAL(svg_y(&p, 10), 60, 1e-12); /* half of two decades */
    CU_ASSERT_DOUBLE_EQUAL(svg_y(&p, 0), 110, 1e-12); /* outside: at the edge */
    CU_ASSERT_DOUBLE_EQUAL(svg_y(&p, 1e9), 10, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(svg_x(&p, -(double) INFINITY), 10, 1e-12);
}

static void test_axis_of(void)
{
    const double some[] = {3, (double) NAN, 5, (double) INFINITY, -1}, logs[] = {0, 0.1, -3, 10};
    struct svg_axis a = svg_axis_of("t", some, 5, false), b = svg_axis_of("t", logs, 4, true),
                    none = svg_axis_of("t", some + 1, 1, true), one = svg_axis_of("t", some, 1, false);

    CU_ASSERT(a.min < -1 && a.min > -2 && a.max > 5 && a.max < 6);
    CU_ASSERT(b.min < 0.1 && b.min > 0.05 && b.max > 10 && b.max < 20);
    CU_ASSERT(none.min > 0 && none.max > none.min);
    CU_ASSERT(one.min < 3 && one.max > 3);
}

static char *draw(const struct svg_axis *x, const struct svg_axis *y, const double *at, const double *to,
                  size_t n)
{
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);
    struct svg_plot p = square(f);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    p.x = *x;
    p.y = *y;
    svg_begin(&p, "\"<label>\"");
    svg_line(&p, "k", at, to, n);
    svg_band(&p, "k", at, to, to, n);
    for (size_t i = 0; i < n; i++)
        for (int mark = SVG_CIRCLE; mark <= SVG_CROSS; mark++)
            svg_marker(&p, "v", (enum svg_mark) mark, at[i], to[i], 3, mark % 2);
    svg_end(&p);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    return out;
}

static void test_line(void)
{
    struct svg_plot p = square(NULL);
    const double at[] = {0, 5, 10}, to[] = {1, (double) NAN, 100};
    _cleanup_(freep) char *text = draw(&p.x, &p.y, at, to, 3);

    CU_ASSERT_PTR_NOT_NULL(strstr(text, "aria-label=\"&quot;&lt;label&gt;&quot;\""));
    /* The line is interrupted in the middle. */
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<path class=\"line k\" d=\"M10.0 110.0M110.0 10.0\"/>"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "<circle class=\"mark v open\" cx=\"10.0\" cy=\"110.0\" r=\"3.0\"/>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ">0</text>"));
    CU_ASSERT_PTR_NULL(strstr(text, ">-0<"));
}

/* Extreme, equal and not finite numbers: still a picture of moderate size with finite coordinates. */
static void test_odd_numbers(void)
{
    const double odd[] = {0, -0.0, DBL_MAX, -DBL_MAX, DBL_MIN, 4e-320, (double) NAN, (double) INFINITY, 7, 7};
    size_t n = sizeof(odd) / sizeof(*odd);

    for (size_t first = 0; first < n; first++)
        for (int log = 0; log < 2; log++) {
            struct svg_axis x = svg_axis_of("x", odd + first, n - first, log),
                            y = svg_axis_of("y", odd, first + 1, log);
            _cleanup_(freep) char *text = draw(&x, &y, odd + first, odd, n - first);

            CU_ASSERT_PTR_NULL(strstr(text, "nan"));
            CU_ASSERT_PTR_NULL(strstr(text, "inf"));
            CU_ASSERT(strlen(text) < 100000);
        }
}

static void test_ticks(void)
{
    struct svg_axis x = {.max = 1, .every = 0.25}, y = {.min = 1e-12, .max = 1, .log = true};
    _cleanup_(freep) char *text = draw(&x, &y, NULL, NULL, 0);

    CU_ASSERT_PTR_NOT_NULL(strstr(text, ">0.25</text>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ">10⁻¹²</text>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ">1</text>"));
}

static void test_heat_step(void)
{
    CU_ASSERT_EQUAL(svg_heat_step(0, 0, 9), 0);
    CU_ASSERT_EQUAL(svg_heat_step(0.99, 0, 9), 0);
    CU_ASSERT_EQUAL(svg_heat_step(1, 0, 9), 1);
    CU_ASSERT_EQUAL(svg_heat_step(9, 0, 9), SVG_RAMP - 1);
    CU_ASSERT_EQUAL(svg_heat_step(-5, 0, 9), 0);
    CU_ASSERT_EQUAL(svg_heat_step(1e300, 0, 9), SVG_RAMP - 1);
    CU_ASSERT_EQUAL(svg_heat_step(3, 3, 3), 0);
}

static char *heat(uint32_t n_layers, uint32_t n_heads, const double *value)
{
    struct svg_heat h = {.n_layers = n_layers,
                         .n_heads = n_heads,
                         .value = value,
                         .printed = value,
                         .small = value,
                         .format = "%.1f",
                         .small_format = "%.2fb",
                         .max = 8};
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    svg_heat(f, &h, "Keys");
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    return out;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

static void test_heat(void)
{
    double value[34 * 2] = {0};
    char *text;

    value[67] = 8;
    value[1] = (double) NAN;
    text = heat(34, 2, value);
    CU_ASSERT_EQUAL(count(text, "<g class=\"cell"), 68);
    CU_ASSERT_EQUAL(count(text, "<svg class=\"heat\""), 4); /* of 10 layers, the last one of 4 */
    CU_ASSERT_EQUAL(count(text, "head 1</text>"), 4);
    CU_ASSERT_EQUAL(count(text, "viewBox=\"0 0 366 84\""), 4); /* cells of one size in all of them */
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "<g class=\"cell q8\"><title>Keys, layer 33, head 1: 8.0; 8.00b</title>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<g class=\"cell none\"><title>Keys, layer 0, head 1: –; –</title>"));
    free(text);
    text = heat(1024, 1024, NULL); /* the values are not read */
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "too many cells for a page"));
    free(text);
}

const struct test_case test_cases[] = {
    TEST(test_scales), TEST(test_axis_of),   TEST(test_line), TEST(test_odd_numbers),
    TEST(test_ticks),  TEST(test_heat_step), TEST(test_heat), TEST_END,
};
const char test_suite[] = "svg";
