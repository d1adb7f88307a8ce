/* Exchanging one statistic of two sources at a time: the codec, the part that differs, bad input. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_swap.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { D = 32, WINDOW = 400 };

/* How a source differs from the plain one. */
struct source {
    double offset; /* added to keys and values */
    double apart;  /* share of its own matrix from keys to values */
    double wide;   /* deviation of all keys */
};

/* Windows of two layers: keys normal with falling deviations; values a matrix times the keys plus noise. */
static struct stats *draw_stats(const struct source *from, uint64_t first_document, size_t n_windows)
{
    struct geometry g = shape(2, 1, 1, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.n_samples = 20000;
    o.want_attention = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, &g, WINDOW);
    for (uint64_t document = 0; document < n_windows; document++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            fill_normal(x.k, WINDOW, D, D, 0);
            for (size_t t = 0; t < WINDOW; t++)
                for (size_t i = 0; i < D; i++) {
                    double v = 0.1 * test_rand_normal();

                    for (size_t j = 0; j < D; j++)
                        v += (sin((double) (i * D + j)) + from->apart * sin((double) (3 * (i + 7 * j + 1)))) /
                             4 * (double) x.k[t * D + j];
                    x.v[t * D + i] = (float) (v * from->wide + from->offset);
                }
            for (size_t i = 0; i < (size_t) WINDOW * D; i++)
                x.k[i] = (float) (from->wide * (double) x.k[i] + from->offset);
            CU_ASSERT_EQUAL(
                stats_add_layer(s, first_document + document, 0, layer, WINDOW, NULL, x.k, x.v, NULL, &e), 0);
        }
    shape_data_deinit(&x);
    return s;
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

/* The row of this name; fatal if there is none. */
static const struct swap_row *row_of(const struct swap_row *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    CU_FAIL_FATAL("no such row");
    return NULL;
}

static double left_of(const struct swap_row *rows, size_t n, const char *name)
{
    return row_of(rows, n, name)->left;
}

/* Two halves of one source: the codec here is that of a table; nothing taken from the other half helps. */
static void test_same_source(void)
{
    static const enum prediction from[] = {PREDICT_NONE, PREDICT_HEAD, PREDICT_LAYER};
    struct source plain = {0.2, 0, 1};
    _cleanup_(stats_freep) struct stats *a = draw_stats(&plain, 0, 4), *b = draw_stats(&plain, 100, 4);

    for (int i = 0; i < 6; i++) {
        struct solve_options o = options(), own;
        struct swap_row rows[SWAP_ROWS_MAX];
        struct solve_report report;
        _cleanup_(table_unrefp) struct table *table = NULL;
        _cleanup_(freep) void *bytes = NULL;
        struct errmsg e = {""};
        double by_layer[2 * 2], want[2];
        size_t n, n_bytes;

        o.v_from = from[i / 2];
        o.decoder = i % 2 ? DECODER_LEAST_SQUARES : DECODER_INVERSE;
        CU_ASSERT_EQUAL_FATAL(solve_swap(a, b, &o, 0, rows, &n, &e), 0);
        own = o;
        own.leave_out = false;
        CU_ASSERT_EQUAL_FATAL(solve_table(a, &own, &bytes, &n_bytes, &report, &e), 0);
        CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n_bytes, &table, &e), 0);
        CU_ASSERT_EQUAL_FATAL(solve_distortion(b, table, &own, by_layer, &e), 0);
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            want[side] = by_layer[side] + by_layer[2 + side];
            CU_ASSERT_DOUBLE_EQUAL(rows[0].distortion[side], want[side], 0.04 * want[side]);
        }
        CU_ASSERT_EQUAL(n, 13u - (i / 2 == 0) - (i % 2 == 0));
        for (size_t row = 0; row < n; row++)
            CU_ASSERT_DOUBLE_EQUAL(rows[row].left, 1, 0.06);
    }
}

/* The part in which a source differs is the one that leaves least, and the others repair nothing. */
static void test_part_that_differs(void)
{
    struct source plain = {0, 0, 1}, moved = {1.5, 0, 1}, other_matrix = {0, 2, 1}, wide = {0, 0, 2};
    const struct source *const sources[] = {&moved, &other_matrix, &wide};
    static const char *const names[] = {"means", "prediction of values", "scales of bands"};
    _cleanup_(stats_freep) struct stats *a = draw_stats(&plain, 0, 4);

    for (int i = 0; i < 3; i++) {
        _cleanup_(stats_freep) struct stats *b = draw_stats(sources[i], 100, 4);
        struct solve_options o = options();
        struct swap_row rows[SWAP_ROWS_MAX];
        struct errmsg e = {""};
        size_t n;

        CU_ASSERT_EQUAL_FATAL(solve_swap(a, b, &o, 0, rows, &n, &e), 0);
        CU_ASSERT_DOUBLE_EQUAL(rows[0].left, 1, 0);
        for (int other = 0; other < 3; other++)
            CU_ASSERT(other == i ? left_of(rows, n, names[i]) < 0.75
                                 : left_of(rows, n, names[other]) > left_of(rows, n, names[i]) + 0.1);
        CU_ASSERT(left_of(rows, n, "metric") > 0.99 && left_of(rows, n, "metric") < 1.01); /* mse */
        CU_ASSERT(left_of(rows, n, "everything") < left_of(rows, n, names[i]) + 0.05);
        /* keys alone: values are as they were, but for the codes that they are predicted from */
        CU_ASSERT(row_of(rows, n, "covariances of keys")->parts[SIDE_V] == 0);
    }
}

/* One layer of two: half of the distortion of both, whose sources are alike. */
static void test_layers(void)
{
    struct source plain = {0, 0, 1}, wide = {0, 1, 1.3};
    _cleanup_(stats_freep) struct stats *a = draw_stats(&plain, 0, 4), *b = draw_stats(&wide, 100, 4);
    struct solve_options o = options();
    struct swap_row all[SWAP_ROWS_MAX], one[SWAP_ROWS_MAX];
    struct errmsg e = {""};
    size_t n_all, n_one;

    CU_ASSERT_EQUAL_FATAL(solve_swap(a, b, &o, 7, all, &n_all, &e), 0);
    CU_ASSERT_EQUAL_FATAL(solve_swap(a, b, &o, 1, one, &n_one, &e), 0);
    CU_ASSERT_EQUAL_FATAL(n_all, n_one);
    for (size_t i = 0; i < n_all; i++) {
        CU_ASSERT(one[i].distortion[SIDE_K] < 0.7 * all[i].distortion[SIDE_K]);
        CU_ASSERT(one[i].distortion[SIDE_K] > 0.3 * all[i].distortion[SIDE_K]);
        CU_ASSERT_DOUBLE_EQUAL(one[i].left, all[i].left, 0.1);
    }
}

static void test_refusals(void)
{
    struct source plain = {0, 0, 1};
    _cleanup_(stats_freep) struct stats *a = draw_stats(&plain, 0, 2), *b = draw_stats(&plain, 100, 2);
    struct solve_options o = options();
    struct swap_row rows[SWAP_ROWS_MAX];
    struct errmsg e = {""};
    size_t n = 77;

    b->o.model_digest[0] ^= 1;
    CU_ASSERT_EQUAL(solve_swap(a, b, &o, 0, rows, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "of different models"));
    b->o.model_digest[0] ^= 1;
    solve_options_for(&o, METHOD_PAPER_KL, 3);
    CU_ASSERT_EQUAL(solve_swap(a, b, &o, 0, rows, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "method bands only"));
    o = options();
    o.metric = METRIC_OUTPUT; /* neither has it */
    CU_ASSERT_EQUAL(solve_swap(a, b, &o, 0, rows, &n, &e), -EINVAL);
    o = options();
    b->n_held = 63;
    CU_ASSERT_EQUAL(solve_swap(a, b, &o, 0, rows, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "63 sampled tokens"));
    CU_ASSERT_EQUAL(n, 77);
}

const struct test_case test_cases[] = {
    TEST(test_same_source), TEST(test_part_that_differs), TEST(test_layers), TEST(test_refusals), TEST_END,
};
const char test_suite[] = "solve_swap";
