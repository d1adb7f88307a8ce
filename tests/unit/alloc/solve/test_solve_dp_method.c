/*
 * METHOD_DP and the paper's parameters, on statistics of known structure. The oracle of measured curves is
 * the finished table: its distortion of the samples (solve_report) must equal that of the curves.
 */
#include <errno.h>
#include <stdio.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/table.h"
#include "tests/unit/alloc/shapes.h"

enum { WINDOW = 200, WINDOWS = 5 }; /* fewer tokens than the limit of a measured curve: all are quantised */

/* Keys of head 0 are four times as long, those of layer 0, head 0 sometimes constant. */
static struct stats *synthetic(const struct geometry *g, bool constant)
{
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};
    size_t width = (size_t) g->n_kv_heads * g->d;

    stats_options_default(&o, g);
    o.n_samples = WINDOW * WINDOWS;
    o.n_sink = 0;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, g, WINDOW);
    shape_data_draw(&x, g);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s, l, x.wo, x.n_embd, &e), 0);
    for (uint64_t doc = 0; doc < WINDOWS; doc++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            shape_data_draw(&x, g);
            for (size_t t = 0; t < WINDOW; t++)
                for (size_t i = 0; i < g->d; i++) {
                    float *k = &x.k[t * width + i];

                    *k = constant && l == 0 ? 0.5f : *k * 4;
                }
            CU_ASSERT_EQUAL(stats_add_layer(s, doc, 0, l, WINDOW, x.q, x.k, x.v, NULL, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
    return s;
}

struct solved {
    struct table *table;
    struct solve_report report;
};

static struct solved solve(const struct stats *s, const struct solve_options *o)
{
    struct solved ret = {0};
    struct errmsg e = {""};
    void *bytes = NULL;
    size_t n_bytes = 0;

    CU_ASSERT_EQUAL(solve_table(s, o, &bytes, &n_bytes, &ret.report, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n_bytes, &ret.table, &e), 0);
    free(bytes);
    return ret;
}

/* Rows of the encoder that are not padding: the paper's r. */
static unsigned rank_of(const struct table *t, const struct codec *c)
{
    unsigned n = 0;

    for (unsigned i = 0; i < c->r; i++)
        for (unsigned j = 0; j < t->geometry.d; j++)
            if (c->enc[i * t->geometry.d + j] != 0) {
                n++;
                break;
            }
    return n;
}

static double nominal_bits(const struct table *t, enum side side)
{
    double sum = 0;

    for (uint32_t i = side; i < head_side_count(&t->geometry); i += 2)
        sum += t->codecs[i].r ? (double) rank_of(t, &t->codecs[i]) * t->codecs[i].bits[0] : 0;
    return sum;
}

/* The sum of r b stays within the budget of all keys together, and r b within that of each head of values.
 * Each head has one width; budgets differ between heads. */
static void test_budget(void)
{
    struct geometry g = shape(1, 4, 2, 64, 64);
    struct stats *s = synthetic(&g, false);
    static const double bpds[] = {0.3, 1, 2.3};

    for (size_t i = 0; i < 6; i++) {
        double bpd = bpds[i / 2], keys = 2 * 64;
        struct solve_options o;
        struct solved t;

        solve_options_for(&o, METHOD_DP, bpd);
        o.curve = i % 2 ? CURVE_BENNETT : CURVE_MEASURED;
        t = solve(s, &o);
        CU_ASSERT(nominal_bits(t.table, SIDE_K) <= bpd * keys + 1e-6);
        /* 2 ranks at 8 bits more would exceed the budget */
        CU_ASSERT(nominal_bits(t.table, SIDE_K) > bpd * keys - 16);
        CU_ASSERT(t.report.bpd_nominal <= bpd + 1e-9);
        for (uint32_t hs = 0; hs < head_side_count(&g); hs++) {
            const struct codec *c = &t.table->codecs[hs];

            for (unsigned j = 1; j < c->n_half; j++)
                CU_ASSERT(c->bits[j] == c->bits[0] || c->bits[j] == 0);
            CU_ASSERT(rank_of(t.table, c) % 2 == 0);
            CU_ASSERT(c->r == 0 || (c->bits[0] >= 2 && c->bits[0] <= 8));
            if (hs % 2 == SIDE_V)
                CU_ASSERT(c->r == 0 || rank_of(t.table, c) * c->bits[0] <= bpd * 64 + 1e-6);
        }
        CU_ASSERT(table_codec(t.table, 0, 0, SIDE_K)->code_bits >
                  table_codec(t.table, 0, 1, SIDE_K)->code_bits);
        (void) table_unref(t.table);
    }
    (void) stats_free(s);
}

/*
 * Distortion of the curve against that of the table, for every rank of a grid and width, under both metrics,
 * with Hadamard and Hartley rotations. Both quantise the same samples, sums are binary32, and the covariance
 * is of the same tokens, so they differ by rounding only: a few codes at thresholds, 1e-4 of the total.
 */
static void test_measured_curve_is_the_distortion_of_the_table(void)
{
    struct geometry g = shape(1, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, false);
    static const uint32_t ranks[] = {6, 16, 24, 32};

    for (unsigned i = 0; i < 4; i++)
        for (uint32_t b = 1; b <= 5; b += 2)
            for (int metric = METRIC_MSE; metric <= METRIC_QUERY; metric++) {
                struct solve_options o;
                struct solved t;

                solve_options_for(&o, METHOD_DP, 0);
                o.k_bpd = o.v_bpd = ranks[i] * b / 32.0;
                o.metric = (enum metric) metric;
                o.paper.B_min = 0;
                o.paper.rank_step = ranks[i]; /* and its multiples, and rank 0 */
                o.paper.b_min = o.paper.b_max = b;
                t = solve(s, &o);
                CU_ASSERT_DOUBLE_EQUAL(t.report.distortion_estimated, t.report.distortion,
                                       1e-4 * t.report.distortion);
                (void) table_unref(t.table);
            }
    (void) stats_free(s);
}

/* The paper's C1 and C2 choose among the same codecs: at the bits they spend, the optimum over curves
 * measured on these samples has no more distortion. Compared by the tables; rounding as above. */
static void test_beats_the_paper(void)
{
    struct geometry g = shape(1, 4, 2, 64, 64);
    struct stats *s = synthetic(&g, false);
    static const double bpds[] = {0.7, 2};

    for (size_t i = 0; i < 2; i++)
        for (int kl = 0; kl < 2; kl++) {
            struct solve_options o;
            struct solved paper, dp;

            solve_options_for(&o, kl ? METHOD_PAPER_KL : METHOD_PAPER_MSE, bpds[i]);
            paper = solve(s, &o);
            solve_options_for(&o, METHOD_DP, 0);
            o.metric = kl ? METRIC_QUERY : METRIC_MSE;
            o.k_bpd = nominal_bits(paper.table, SIDE_K) / (2 * 64);
            o.v_bpd = bpds[i];
            o.paper.B_min = 0; /* C2 may leave a head less than its minimum */
            dp = solve(s, &o);
            CU_ASSERT(dp.report.distortion_k <= paper.report.distortion_k * (1 + 1e-4));
            CU_ASSERT(dp.report.distortion_v <= paper.report.distortion_v * (1 + 1e-4));
            (void) table_unref(paper.table);
            (void) table_unref(dp.table);
        }
    (void) stats_free(s);
}

static void test_paper_parameters(void)
{
    struct geometry g = shape(1, 4, 2, 64, 64);
    struct stats *s = synthetic(&g, false);
    static const enum method methods[] = {METHOD_PAPER_KL, METHOD_DP};

    for (size_t i = 0; i < 2; i++) {
        struct solve_options o;
        struct solved t;

        solve_options_for(&o, methods[i], 2);
        o.paper.rank_step = 8;
        o.paper.b_min = 3;
        o.paper.b_max = 4;
        t = solve(s, &o);
        /* whole half-tiles: no padding */
        CU_ASSERT_DOUBLE_EQUAL(t.report.bpd_nominal, t.report.bpd_code, 1e-12);
        for (uint32_t hs = 0; hs < head_side_count(&g); hs++)
            CU_ASSERT(t.table->codecs[hs].r == 0 || t.table->codecs[hs].bits[0] == 3 ||
                      t.table->codecs[hs].bits[0] == 4);
        CU_ASSERT_PTR_NOT_NULL(strstr(t.table->provenance, "\"rank_step\":8"));
        CU_ASSERT_PTR_NOT_NULL(strstr(t.table->provenance, "\"b_max\":4"));
        (void) table_unref(t.table);
    }
    (void) stats_free(s);
}

/* With eta 0 or 0 rounds, C2 leaves every head the mean budget, whatever the length of its vectors. */
static void test_no_redistribution(void)
{
    struct geometry g = shape(1, 4, 2, 64, 64);
    struct stats *s = synthetic(&g, false);

    for (int i = 0; i < 2; i++) {
        struct solve_options o;
        struct solved t;

        solve_options_for(&o, METHOD_PAPER_MSE, 2);
        if (i == 0)
            o.paper.eta = 0;
        else
            o.paper.rounds = 0;
        t = solve(s, &o);
        for (uint32_t hs = SIDE_K; hs < head_side_count(&g); hs += 2) {
            const struct codec *c = &t.table->codecs[hs];

            /* round(B / r) moves r b by at most r / 2 from B */
            CU_ASSERT(fabs((double) rank_of(t.table, c) * c->bits[0] - 2 * 64) <= 32);
        }
        (void) table_unref(t.table);
    }
    (void) stats_free(s);
}

/* Distortions by layer add up to those of the report, by side; another geometry is refused. */
static void test_distortion_by_layer(void)
{
    struct geometry g = shape(3, 4, 2, 32, 32), other = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, false), *fewer = synthetic(&other, false);
    double distortion[3 * 2], sum[2] = {0};
    struct solve_options o;
    struct errmsg e = {""};
    struct solved t;

    solve_options_for(&o, METHOD_DP, 2);
    t = solve(s, &o);
    CU_ASSERT_EQUAL(solve_distortion(s, t.table, &o, distortion, &e), 0);
    for (size_t i = 0; i < 6; i++) {
        CU_ASSERT(distortion[i] > 0);
        sum[i % 2] += distortion[i];
    }
    CU_ASSERT_DOUBLE_EQUAL(sum[SIDE_K], t.report.distortion_k, 1e-9 * sum[SIDE_K]);
    CU_ASSERT_DOUBLE_EQUAL(sum[SIDE_V], t.report.distortion_v, 1e-9 * sum[SIDE_V]);
    CU_ASSERT_EQUAL(solve_distortion(fewer, t.table, &o, distortion, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "another geometry"));
    (void) table_unref(t.table);
    (void) stats_free(s);
    (void) stats_free(fewer);
}

static void test_degenerate(void)
{
    struct geometry g = shape(1, 4, 2, 32, 16);
    struct stats *s = synthetic(&g, true);
    struct solve_options o;
    struct solved t;

    solve_options_for(&o, METHOD_DP, 2);
    t = solve(s, &o);
    CU_ASSERT_EQUAL(table_codec(t.table, 0, 0, SIDE_K)->r, 0);
    CU_ASSERT(table_codec(t.table, 0, 1, SIDE_K)->r > 0);
    (void) table_unref(t.table);
    (void) stats_free(s);
}

static void refused(const struct stats *s, const struct solve_options *o, int err, const char *words)
{
    struct solve_report report;
    void *bytes = NULL;
    size_t n;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(solve_table(s, o, &bytes, &n, &report, &e), err);
    CU_ASSERT_PTR_NULL(bytes);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, words));
    if (!strstr(e.text, words))
        printf("    got: %s\n", e.text);
}

static void test_refusals(void)
{
    struct geometry g = shape(1, 2, 1, 32, 32);
    struct stats *s = synthetic(&g, false);
    struct solve_options o;

    solve_options_for(&o, METHOD_DP, 2);
    o.metric = METRIC_ATTENTION;
    refused(s, &o, -EINVAL, "defined for metrics mse and query");
    solve_options_for(&o, METHOD_DP, 0.1); /* 3.2 bits of 32: below B_min = 8 */
    refused(s, &o, -ERANGE, "the smallest possible budget is 0.2500");
    o.k_bpd = 1;
    o.v_bpd = 0.1;
    refused(s, &o, -ERANGE, "for V");
    solve_options_for(&o, METHOD_DP, 2);
    o.floor_bpd = 1;
    refused(s, &o, -EINVAL, "no floor");
    solve_options_for(&o, METHOD_DP, 2);
    o.paper.rank_step = 33;
    refused(s, &o, -EINVAL, "a rank step of 33 is not in 1..32");
    o.paper.rank_step = 0;
    refused(s, &o, -EINVAL, "a rank step of 0");
    solve_options_for(&o, METHOD_PAPER_KL, 2);
    o.paper.b_min = 0;
    refused(s, &o, -EINVAL, "widths of 0 to 8");
    o.paper.b_min = 5;
    o.paper.b_max = 4;
    refused(s, &o, -EINVAL, "widths of 5 to 4");
    solve_options_for(&o, METHOD_PAPER_KL, 2);
    o.paper.B_min = NAN;
    refused(s, &o, -EINVAL, "a least budget of");
    o.paper.B_min = 8;
    o.paper.eta = INFINITY;
    refused(s, &o, -EINVAL, "eta inf");
    s->n_held = 0;
    solve_options_for(&o, METHOD_DP, 2);
    refused(s, &o, -EINVAL, "no sampled tokens");
    (void) stats_free(s);
}

const struct test_case test_cases[] = {
    TEST(test_budget),
    TEST(test_measured_curve_is_the_distortion_of_the_table),
    TEST(test_beats_the_paper),
    TEST(test_paper_parameters),
    TEST(test_no_redistribution),
    TEST(test_distortion_by_layer),
    TEST(test_degenerate),
    TEST(test_refusals),
    TEST_END,
};
const char test_suite[] = "solve_dp_method";
