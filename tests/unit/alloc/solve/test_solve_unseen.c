/* Tables fitted to sources that were left out: the view, the expectation, provenance, bad and odd sources. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/table_expected.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { D = 32, WINDOW = 300, SINKS = 4 };

static struct stats *make_stats(void)
{
    struct geometry g = shape(1, 1, 1, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.n_samples = 20000;
    o.want_attention = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    return s;
}

/*
 * A window of a source: keys normal; values a matrix times the keys plus noise. Of the matrix, one part is
 * common and one, weighed by @apart, belongs to the source. @spread: deviation of keys in the last
 * dimensions.
 */
static void add_window(struct stats *s, uint8_t source, uint64_t document, size_t n, double apart,
                       double spread)
{
    const uint8_t digest[DIGEST_BYTES] = {source};
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;

    shape_data_init(&x, &g, n);
    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < D; i++)
            x.k[t * D + i] = (float) (test_rand_normal() * (i < D / 2 ? 1 : spread));
        for (size_t i = 0; i < D; i++) {
            double v = 0.3 * test_rand_normal();

            for (size_t j = 0; j < D; j++)
                v += (sin((double) (i * D + j)) + apart * sin((double) ((source + 2) * (i + 7 * j + 1)))) /
                     6 * (double) x.k[t * D + j];
            x.v[t * D + i] = (float) v;
        }
    }
    CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_TEXT, digest, &e), 0);
    CU_ASSERT_EQUAL(stats_add_layer(s, document, 0, 0, n, NULL, x.k, x.v, NULL, &e), 0);
    shape_data_deinit(&x);
}

static struct stats *several_sources(uint8_t n, double apart)
{
    struct stats *s = make_stats();

    for (uint64_t i = 0; i < 3u * n; i++)
        add_window(s, (uint8_t) (i % n), i, WINDOW, apart, 0.1 + 0.1 * (double) (i % n));
    return s;
}

struct solved {
    struct table *table;
    void *bytes;
    size_t n;
    struct solve_report report;
};

static void solved_deinit(struct solved *t)
{
    table_unref(t->table);
    free(t->bytes);
}

static struct solved solve(const struct stats *s, const struct solve_options *o)
{
    struct solved t = {NULL};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(solve_table(s, o, &t.bytes, &t.n, &t.report, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(t.bytes, t.n, &t.table, &e), 0);
    return t;
}

static struct solve_options options(void)
{
    struct solve_options o;

    solve_options_default(&o, 3);
    o.trellis_states = 0;
    solve_options_least_squares(&o);
    o.metric = METRIC_MSE;
    return o;
}

/* Keys: a row less the mean of the others, the second moment about it, and the covariance of the others. */
static void test_view(void)
{
    _cleanup_(stats_freep) struct stats *s = make_stats();
    _cleanup_(solver_deinit) struct solver v = {0};
    _cleanup_(solve_view_deinit) struct solve_view w = {0};
    struct solve_options o = options();
    struct errmsg e = {""};
    double mean[2][D] = {{0}}, second = 0, rest = 0;
    _cleanup_(freep) float *x = NULL, *u = NULL;
    struct solve_rows rows = {.n = 0};
    size_t n_rows = 0;

    add_window(s, 0, 0, WINDOW, 0, 1);
    add_window(s, 1, 1, WINDOW, 0, 3);
    CU_ASSERT_EQUAL_FATAL(solver_init(&v, s, &o, &e), 0);
    CU_ASSERT_TRUE(v.leaves_out);
    CU_ASSERT_EQUAL_FATAL(solve_view_init(&v, 0, &w), 0);
    CU_ASSERT_EQUAL_FATAL(solve_view_plain(&w), 0);
    CU_ASSERT_EQUAL_FATAL(w.n_sources, 2);
    x = solver_samples(&v, 0);
    u = calloc(SOLVE_BLOCK * D, sizeof(*u));
    CU_ASSERT_FATAL(x && u);
    for (int source = 0; source < 2; source++)
        for (size_t t = v.first[source]; t < v.first[source + 1]; t++)
            for (size_t i = 0; i < D; i++)
                mean[source][i] += (double) x[t * D + i] / (WINDOW - SINKS);
    while (solve_rows_next(&v, 1, &rows)) {
        n_rows += rows.n;
        CU_ASSERT_EQUAL(solve_view_read(&w, &rows, u), 0);
        for (size_t i = 0; i < rows.n; i++) {
            double last = (double) x[(rows.first + i) * D + D - 1],
                   away = last - mean[1 - rows.source][D - 1];

            /* samples are binary16 */
            CU_ASSERT_DOUBLE_EQUAL(u[i * D + D - 1], away, 1e-2);
            second += rows.source == 1 ? away * away / (WINDOW - SINKS) : 0;
            rest += rows.source == 0 ? pow(last - mean[0][D - 1], 2) / (WINDOW - SINKS) : 0;
        }
    }
    CU_ASSERT_EQUAL(n_rows, 2 * (WINDOW - SINKS));
    CU_ASSERT_DOUBLE_EQUAL(w.left[D * D + D * D - 1], second, 1e-2 * second);
    CU_ASSERT_DOUBLE_EQUAL(w.rest[D * D + D * D - 1], rest, 1e-2 * rest);
    CU_ASSERT(second > 5 * rest); /* deviations of 3 and 1 */
}

/* What was expected of other texts is what a source that was left out has; more than the table's own. */
static void test_expectation(void)
{
    _cleanup_(stats_freep) struct stats *s = several_sources(5, 0.2);
    struct solve_options o = options();
    struct solved all = solve(s, &o), one;
    double measured = 0, expected = 0;
    struct table_expected x;

    CU_ASSERT_TRUE(all.report.unseen.expected);
    CU_ASSERT(all.report.unseen.distortion > all.report.distortion);
    CU_ASSERT_PTR_NOT_NULL(strstr(all.table->provenance, "\"leave_out\":true"));
    CU_ASSERT_PTR_NOT_NULL(strstr(all.table->provenance, "\"unseen_distortion\":"));
    CU_ASSERT_EQUAL(table_expected_read(all.table->provenance, &x), 0);
    CU_ASSERT_DOUBLE_EQUAL(x.error[SIDE_V], all.report.unseen.error[SIDE_V], 1e-4 * x.error[SIDE_V]);
    for (unsigned side = 0; side < 2; side++) {
        CU_ASSERT(all.report.saturated[side] > 0 && all.report.saturated[side] < 0.2);
        CU_ASSERT_DOUBLE_EQUAL(x.saturated[side], all.report.unseen.saturated[side], 1e-4);
    }
    for (o.without = 1; o.without <= 5; o.without++) {
        one = solve(s, &o);
        measured += one.report.left_out_distortion / 5;
        solved_deinit(&one);
    }
    expected = all.report.unseen.distortion;
    /* bits, prediction and levels of the five tables are those of four sources, not of five */
    CU_ASSERT(expected > 0.6 * measured && expected < 1.4 * measured);
    solved_deinit(&all);
}

/* On a source that it was not fitted to, a table is better if others were left out while it was fitted. */
static void test_better_on_other_sources(void)
{
    _cleanup_(stats_freep) struct stats *s = several_sources(3, 1);
    double robust = 0, own = 0;

    for (uint32_t without = 1; without <= 3; without++)
        for (int left_out = 0; left_out < 2; left_out++) {
            struct solve_options o = options();
            struct solved t;

            o.without = without;
            o.leave_out = left_out;
            t = solve(s, &o);
            *(left_out ? &robust : &own) += t.report.left_out_distortion;
            CU_ASSERT_EQUAL(t.report.unseen.expected, left_out);
            solved_deinit(&t);
        }
    CU_ASSERT(robust < 0.97 * own);
}

/* One source: nothing can be left out, and the table is that of the source itself. */
static void test_one_source(void)
{
    _cleanup_(stats_freep) struct stats *s = make_stats();
    struct solve_options o = options(), own = options();
    struct solved a, b;
    struct errmsg e = {""};
    struct solve_report report;
    void *bytes;
    size_t n;

    for (uint64_t i = 0; i < 4; i++)
        add_window(s, 0, i, WINDOW, 1, 0.3);
    own.leave_out = false;
    a = solve(s, &o);
    b = solve(s, &own);
    CU_ASSERT_FALSE(a.report.unseen.expected);
    CU_ASSERT_EQUAL(memcmp(a.table->digest, b.table->digest, DIGEST_BYTES), 0);
    o.without = 1;
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "cannot be solved without source 1"));
    solved_deinit(&a);
    solved_deinit(&b);
}

/* Distortion of one source, numbered from 0, by a table. */
static double distortion_of(const struct stats *s, uint32_t source, const struct solved *t)
{
    _cleanup_(solver_deinit) struct solver v = {0};
    struct solve_options o = options();
    struct solve_report report = {0};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(solver_init_with(&v, s, &o, 1u << source, &e), 0);
    CU_ASSERT_EQUAL_FATAL(solve_measure(&v, t->bytes, t->n, &report, &e), 0);
    return report.distortion;
}

/* A source of a few tokens, one that repeats a token and one without variance, beside a large one: the large
 * one is at most 2 % worse than without them. */
static void test_bad_sources(void)
{
    for (int bad = 0; bad < 3; bad++) {
        _cleanup_(stats_freep) struct stats *s = make_stats();
        struct solve_options o = options();
        struct solved with, without;
        struct errmsg e = {""};

        for (uint64_t i = 0; i < 60; i++)
            add_window(s, 0, i, WINDOW, 1, 0.3);
        if (bad == 0) {
            add_window(s, 1, 100, 30, 1, 0.6);
        } else {
            const uint8_t digest[DIGEST_BYTES] = {1};
            struct geometry g = s->o.geometry;
            struct shape_data x;

            shape_data_init(&x, &g, 40);
            for (size_t i = 0; bad == 1 && i < 40 * D; i++)
                x.k[i] = x.v[i] = (float) (i % D) / (2 * D); /* one token, forty times */
            CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_TEXT, digest, &e), 0);
            CU_ASSERT_EQUAL(stats_add_layer(s, 100, 0, 0, 40, NULL, x.k, x.v, NULL, &e), 0);
            shape_data_deinit(&x);
        }

        with = solve(s, &o);
        o.without = 2;
        without = solve(s, &o);
        CU_ASSERT(distortion_of(s, 0, &with) < 1.02 * distortion_of(s, 0, &without));
        solved_deinit(&with);
        solved_deinit(&without);
    }
}

/* A window of source @source that is odd: one token @n times, or broken vectors. */
static void add_odd_window(struct stats *s, uint8_t source, uint64_t document, size_t n, double amplitude)
{
    const uint8_t digest[DIGEST_BYTES] = {source};
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;

    shape_data_init(&x, &g, n);
    for (size_t i = 0; i < n * D; i++) {
        x.k[i] = (float) ((double) (i % D) / (2 * D) + amplitude * test_rand_normal());
        x.v[i] = (float) ((double) (i % D) / (2 * D) + amplitude * test_rand_normal());
    }
    CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_TEXT, digest, &e), 0);
    CU_ASSERT_EQUAL(stats_add_layer(s, document, 0, 0, n, NULL, x.k, x.v, NULL, &e), 0);
    shape_data_deinit(&x);
}

/*
 * Beside one source or two: a token that repeats, with a quarter of the tokens or more, and broken vectors,
 * 5 % of the tokens. The odd source counts less, and others are at most 2 % worse than without it.
 */
static void test_odd_sources(void)
{
    for (uint8_t n = 1; n <= 2; n++)
        for (int broken = 0; broken < 2; broken++) {
            _cleanup_(stats_freep) struct stats *s = make_stats();
            size_t n_odd = broken ? n * 2 : 15;
            struct solve_options o = options();
            struct solved with, without, own;

            for (uint64_t i = 0; i < 20u * n; i++)
                add_window(s, (uint8_t) (i % n), i, WINDOW, 0.3, 0.3);
            for (uint64_t i = 0; i < n_odd; i++)
                add_odd_window(s, n, 1000 + i, broken ? 150 : WINDOW, broken ? 30 : 0.01);
            with = solve(s, &o);
            CU_ASSERT_EQUAL(with.report.reduced, 1u << n);
            o.without = n + 1u;
            without = solve(s, &o);
            CU_ASSERT_EQUAL(without.report.reduced, 0);
            for (uint32_t i = 0; i < n; i++)
                CU_ASSERT(distortion_of(s, i, &with) < 1.02 * distortion_of(s, i, &without));

            o.without = 0;
            o.leave_out = false; /* fitted to all sources as they are */
            own = solve(s, &o);
            CU_ASSERT_EQUAL(own.report.reduced, 0);
            CU_ASSERT(distortion_of(s, 0, &own) > 1.02 * distortion_of(s, 0, &without));
            solved_deinit(&with);
            solved_deinit(&without);
            solved_deinit(&own);
        }
}

/* Without the source that has all samples: refused, since nothing can be fitted. */
static void test_without_all_samples(void)
{
    static const enum method methods[] = {METHOD_BANDS, METHOD_DP};
    _cleanup_(stats_freep) struct stats *s = several_sources(2, 0);

    memset(s->domain_of, 0, s->n_held);
    for (size_t i = 0; i < 2; i++) {
        struct solve_options o;
        struct solve_report report;
        struct errmsg e = {""};
        void *bytes = NULL;
        size_t n;

        solve_options_for(&o, methods[i], 2);
        o.metric = METRIC_MSE;
        o.curve = CURVE_MEASURED;
        o.v_from = PREDICT_NONE;
        o.decoder = DECODER_INVERSE;
        o.without = 1;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "no sampled tokens"));
        CU_ASSERT_PTR_NULL(bytes);
        o.without = 2;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), 0);
        CU_ASSERT_EQUAL(report.left_out_distortion, 0); /* which has no vectors to measure */
        free(bytes);
    }
}

/* Numbers of sources that no statistics have, also beyond the bits of a set. */
static void test_unknown_source(void)
{
    _cleanup_(stats_freep) struct stats *s = several_sources(2, 0);
    static const uint32_t numbers[] = {3, 9, 33, 64, UINT32_MAX};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        struct solve_options o = options();
        struct solve_report report;
        struct errmsg e = {""};
        void *bytes = NULL;
        size_t n;

        o.without = numbers[i];
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "have 2 sources"));
        CU_ASSERT_PTR_NULL(bytes);
    }
}

const struct test_case test_cases[] = {
    TEST(test_view),
    TEST(test_expectation),
    TEST(test_better_on_other_sources),
    TEST(test_one_source),
    TEST(test_bad_sources),
    TEST(test_odd_sources),
    TEST(test_without_all_samples),
    TEST(test_unknown_source),
    TEST_END,
};
const char test_suite[] = "solve_unseen";
