/* Solving extreme inputs, from vectors and from moments, under every metric that needs no gradients: key
 * biases of norm 900, head dimensions that are no power of two, budgets below one bit per band,
 * rank-deficient and constant heads. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_moments.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { WINDOW = 150, WINDOWS = 6 };

/* Changes to the vectors before they are added. */
struct changes {
    double bias;   /* norm of a constant added to the keys of head 0 */
    uint32_t rank; /* number of coordinates of the last head's keys that vary; 0: all */
    bool constant; /* values of head 0 are constant */
};

static void apply(const struct changes *t, const struct geometry *g, struct shape_data *x)
{
    size_t d = g->d, width = g->n_kv_heads * d, last = (g->n_kv_heads - 1) * d;
    double root = sqrt((double) d);

    for (size_t row = 0; row < x->n; row++)
        for (size_t i = 0; i < d; i++) {
            x->k[row * width + i] += (float) (t->bias / root * (i % 2 ? 1 : -1));
            if (t->rank > 0 && i >= t->rank)
                x->k[row * width + last + i] = 0.25f;
            if (t->constant)
                x->v[row * width + i] = 3.5f;
        }
}

struct sums {
    struct stats *stats;
    struct moments *moments;
};

static void sums_deinit(struct sums *s)
{
    (void) stats_free(s->stats);
    (void) moments_free(s->moments);
}

static struct sums count(const struct geometry *g, const struct changes *t)
{
    struct moments_options mo = {.geometry = *g};
    float residual[WINDOW];
    struct stats_options o;
    struct shape_data x;
    struct errmsg e = {""};
    struct sums s = {0};

    stats_options_default(&o, g);
    o.n_samples = WINDOW * WINDOWS;
    o.n_sink = 0;
    o.want_output = true;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s.stats, &e), 0);
    CU_ASSERT_EQUAL_FATAL(moments_new(&mo, &s.moments, &e), 0);
    shape_data_init(&x, g, WINDOW);
    shape_data_draw(&x, g);
    for (size_t i = 0; i < WINDOW; i++)
        residual[i] = 1;
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s.stats, l, x.wo, x.n_embd, &e), 0);
    for (uint64_t doc = 0; doc < WINDOWS; doc++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            shape_data_draw(&x, g);
            apply(t, g, &x);
            CU_ASSERT_EQUAL(stats_add_layer(s.stats, doc, 0, l, WINDOW, x.q, x.k, x.v, residual, &e), 0);
            CU_ASSERT_EQUAL(moments_add(s.moments, l, 0, g->n_kv_heads, WINDOW, x.k, x.v, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
    return s;
}

struct answer {
    struct table *table;
    struct solve_report report;
};

static struct answer solve(const struct stats *s, enum metric metric, double bpd)
{
    _cleanup_(freep) void *bytes = NULL;
    struct answer a = {0};
    struct solve_options o;
    struct errmsg e = {""};
    size_t n = 0;

    solve_options_default(&o, bpd);
    o.metric = metric;
    if (stats_is_moments(s)) {
        o.curve = CURVE_GAUSSIAN;
        o.decoder = DECODER_INVERSE;
        o.fit_levels = false;
    }
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &a.report, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &a.table, &e), 0);
    CU_ASSERT(a.report.bpd_code <= bpd + 1e-9);
    CU_ASSERT(isfinite(a.report.distortion) && isfinite(a.report.distortion_estimated));
    return a;
}

/* Squared error of the keys over the sampled vectors, summed over heads. */
static double key_error(const struct stats *s, const struct table *t)
{
    struct solve_options o;
    struct errmsg e = {""};
    double distortion[2] = {0};

    solve_options_default(&o, 2);
    o.metric = METRIC_MSE;
    CU_ASSERT_EQUAL(solve_distortion(s, t, &o, distortion, &e), 0);
    return distortion[SIDE_K];
}

/*
 * A bias of norm 900 on keys of deviation 1: codecs code the difference to the mean. With 64 dimensions
 * a coordinate of the bias is 112, whose last place in binary32 is 2^-17 = 8e-6, and the products of the
 * transform add some ten of those. The error of 2 bits is 0.1 of a deviation. So the errors with and without
 * the bias agree to 1 %. Both runs use the same random vectors, since new ones would differ by more.
 */
static void test_huge_bias(void)
{
    struct geometry g = shape(1, 2, 2, 64, 64);
    struct errmsg e = {""};
    double error[2], from_moments[2];

    for (int i = 0; i < 2; i++) {
        struct changes t = {.bias = i ? 900 : 0};
        _cleanup_(sums_deinit) struct sums s = {0};
        _cleanup_(stats_freep) struct stats *m = NULL;
        struct answer a;

        test_rand_restart();
        s = count(&g, &t);
        a = solve(s.stats, METRIC_MSE, 2);
        error[i] = key_error(s.stats, a.table);
        (void) table_unref(a.table);
        CU_ASSERT_EQUAL_FATAL(stats_from_moments(s.moments, s.stats, &m, &e), 0);
        a = solve(m, METRIC_MSE, 2);
        from_moments[i] = key_error(s.stats, a.table);
        (void) table_unref(a.table);
        /* softmax of scores in the hundreds: metrics have few large entries, and solving still works */
        if (i == 1)
            for (int metric = METRIC_QUERY; metric <= METRIC_OUTPUT; metric++)
                if (metric != METRIC_FISHER)
                    (void) table_unref(solve(s.stats, (enum metric) metric, 2).table);
    }
    CU_ASSERT(error[0] > 0);
    CU_ASSERT_DOUBLE_EQUAL(error[1], error[0], 0.01 * error[0]);
    CU_ASSERT_DOUBLE_EQUAL(from_moments[1], from_moments[0], 0.01 * from_moments[0]);
}

/* Dimensions that are no powers of two: every metric works, and more bits mean less distortion. */
static void test_dimensions(void)
{
    static const uint32_t dims[] = {80, 96, 112};
    static const enum metric metrics[] = {METRIC_MSE, METRIC_QUERY, METRIC_ATTENTION, METRIC_OUTPUT};

    for (size_t i = 0; i < 3; i++) {
        struct geometry g = shape(1, 2, 1, dims[i], i == 1 ? 48 : dims[i]);
        _cleanup_(sums_deinit) struct sums s = count(&g, &(struct changes){0});
        _cleanup_(stats_freep) struct stats *m = NULL;
        struct errmsg e = {""};

        CU_ASSERT_EQUAL_FATAL(stats_from_moments(s.moments, s.stats, &m, &e), 0);
        for (size_t j = 0; j < 4; j++) {
            struct answer two = solve(s.stats, metrics[j], 2), four = solve(s.stats, metrics[j], 4);
            struct answer moments = solve(m, metrics[j], 2);

            CU_ASSERT_EQUAL(two.table->geometry.d, dims[i]);
            /* two bits: a sixteenth, if all were normal */
            CU_ASSERT(four.report.distortion < two.report.distortion / 4);
            CU_ASSERT(moments.report.distortion_estimated > 0);
            (void) table_unref(two.table);
            (void) table_unref(four.table);
            (void) table_unref(moments.table);
        }
    }
}

/* 64 numbers per token: a band of 8 coordinates costs 8 bits at least. Below that nothing is stored and the
 * decoder gives the mean; at 8 bits one band is stored. */
static void test_tiny_budgets(void)
{
    struct geometry g = shape(1, 1, 1, 32, 32);
    _cleanup_(sums_deinit) struct sums s = count(&g, &(struct changes){0});
    struct answer none = solve(s.stats, METRIC_OUTPUT, 0.12), one = solve(s.stats, METRIC_OUTPUT, 0.125),
                  two = solve(s.stats, METRIC_OUTPUT, 0.25);

    CU_ASSERT_EQUAL(none.report.bpd_code, 0);
    CU_ASSERT_EQUAL(none.table->codecs[0].r, 0);
    CU_ASSERT_EQUAL(none.table->codecs[1].r, 0);
    CU_ASSERT_DOUBLE_EQUAL((double) none.table->codecs[0].mean[3], s.stats->mean[3], 1e-6);
    CU_ASSERT_EQUAL(one.report.bpd_code, 0.125);
    CU_ASSERT_EQUAL(two.report.bpd_code, 0.25);
    CU_ASSERT(one.report.distortion < none.report.distortion);
    CU_ASSERT(two.report.distortion < one.report.distortion);
    (void) table_unref(none.table);
    (void) table_unref(one.table);
    (void) table_unref(two.table);
}

/* For keys of rank 5 beside a constant, constant directions get no bits,
 * and directions that vary are coded. */
static void test_degenerate(void)
{
    static const enum metric metrics[] = {METRIC_MSE, METRIC_QUERY, METRIC_ATTENTION, METRIC_OUTPUT};
    struct geometry g = shape(1, 4, 2, 32, 32);
    _cleanup_(sums_deinit) struct sums s = count(&g, &(struct changes){.rank = 5, .constant = true});
    _cleanup_(stats_freep) struct stats *m = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(stats_from_moments(s.moments, s.stats, &m, &e), 0);
    for (size_t i = 0; i < 4; i++)
        for (int moments = 0; moments < 2; moments++) {
            struct answer a = solve(moments ? m : s.stats, metrics[i], 3);

            CU_ASSERT(table_codec(a.table, 0, 1, SIDE_K)->r <= 16); /* one half-tile and its neighbour */
            CU_ASSERT_EQUAL(table_codec(a.table, 0, 0, SIDE_V)->r, 0);
            CU_ASSERT(fabs((double) table_codec(a.table, 0, 0, SIDE_V)->mean[9] - 3.5) < 1e-4);
            (void) table_unref(a.table);
        }
}

const struct test_case test_cases[] = {
    TEST(test_huge_bias), TEST(test_dimensions), TEST(test_tiny_budgets), TEST(test_degenerate), TEST_END,
};
const char test_suite[] = "solve_extremes";
