/* Solving through the public header: the bytes of alloc/solve/solve.h, defaults, refusals. */
#include <errno.h>

#include "alloc/api/handles.h"
#include "alloc/solve/solve.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/api/api_fixture.h"

const char test_suite[] = "solve_api";

static kvc_stats *make(struct api *f, uint32_t metrics)
{
    kvc_stats *s;

    api_init(f);
    s = api_stats(f, metrics);
    api_add_windows(f, s, 0, 4);
    return s;
}

static void expect_same_table(kvc_stats *s, const kvc_solve_options *o, const struct solve_options *same)
{
    _cleanup_(freep) void *bytes = NULL, *want = NULL;
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    struct solve_report x;
    struct errmsg e = {""};
    size_t n = 0, n_want = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_solve(s, o, &bytes, &n, &report), 0);
    CU_ASSERT_STRING_EQUAL(kvc_alloc_error(s->alloc), "");
    CU_ASSERT_EQUAL_FATAL(solve_table(s->sums, same, &want, &n_want, &x, &e), 0);
    CU_ASSERT_EQUAL_FATAL(n, n_want);
    CU_ASSERT_EQUAL(memcmp(bytes, want, n), 0);
    CU_ASSERT_EQUAL(report.bpd_code, x.bpd_code);
    CU_ASSERT_EQUAL(report.distortion_v, x.distortion_v);
    CU_ASSERT_EQUAL(report.error_k, x.error_k);
    CU_ASSERT_EQUAL(report.metric, (uint32_t) same->metric + 1);
    CU_ASSERT_EQUAL(report.measured, 1);
}

/* Options that are 0 are the method's own, and the metric the best that there is. */
static void test_defaults(void)
{
    struct api f;
    kvc_stats *s = make(&f, KVC_WITH_OUTPUT | KVC_WITH_ATTENTION);
    kvc_solve_options o = {.struct_bytes = sizeof(o), .bpd = 3};
    struct solve_options same;
    uint32_t metric = 0;

    solve_options_for(&same, METHOD_BANDS, 3);
    same.metric = METRIC_OUTPUT;
    expect_same_table(s, &o, &same);
    o.method = KVC_METHOD_PAPER_KL;
    solve_options_for(&same, METHOD_PAPER_KL, 3);
    expect_same_table(s, &o, &same);
    o.method = KVC_METHOD_DP;
    CU_ASSERT_EQUAL(kvc_solve_get_metric(s, &o, &metric), 0);
    CU_ASSERT_EQUAL(metric, KVC_METRIC_QUERY);
    api_deinit(&f);

    s = make(&f, KVC_WITH_ATTENTION);
    o.method = KVC_METHOD_BANDS;
    CU_ASSERT_EQUAL(kvc_solve_get_metric(s, &o, &metric), 0);
    CU_ASSERT_EQUAL(metric, KVC_METRIC_ATTENTION);
    api_deinit(&f);
    s = make(&f, 0);
    CU_ASSERT_EQUAL(kvc_solve_get_metric(s, &o, &metric), 0);
    CU_ASSERT_EQUAL(metric, KVC_METRIC_MSE);
    api_deinit(&f);
}

static void test_every_option(void)
{
    struct api f;
    kvc_stats *s = make(&f, KVC_WITH_OUTPUT | KVC_WITH_ATTENTION);
    kvc_paper_options paper = {.struct_bytes = sizeof(paper),
                               .b_min_budget = 4,
                               .eta = 0.2,
                               .rounds = 3,
                               .rank_step = 4,
                               .b_min = 2,
                               .b_max = 6};
    kvc_solve_options o = {
        .struct_bytes = sizeof(o),
        .k_bpd = 2.5,
        .v_bpd = 3.5,
        .metric = KVC_METRIC_ATTENTION,
        .curve = KVC_CURVE_GAUSSIAN,
        .quantiser = KVC_QUANTISER_UNIFORM,
        .predict = KVC_PREDICT_NONE,
        .decoder = KVC_DECODER_INVERSE,
        .flags = KVC_SOLVE_NO_DEPTH_WEIGHTS | KVC_SOLVE_BLOCKS,
        .temper = 0.5,
        .floor_bpd = 1,
        .ceil_bpd = 6,
        .loading_k = 1.3,
        .contrast_k = 0.7,
        .contrast_v = -1,
        .seed = 5,
    };
    struct solve_options same;

    solve_options_for(&same, METHOD_BANDS, 0);
    same.k_bpd = 2.5;
    same.v_bpd = 3.5;
    same.metric = METRIC_ATTENTION;
    same.curve = CURVE_GAUSSIAN;
    same.quantiser = QUANT_UNIFORM;
    same.trellis_states = 0;
    same.fit_levels = false;
    same.v_from = PREDICT_NONE;
    same.decoder = DECODER_INVERSE;
    same.depth_weights = false;
    same.blocks = true;
    same.temper = 0.5;
    same.floor_bpd = 1;
    same.ceil_bpd = 6;
    same.loading[0] = same.loading_narrow[0] = 1.3;
    same.contrast[0] = 0.7;
    same.contrast[1] = 0;
    same.seed = 5;
    expect_same_table(s, &o, &same);

    o = (kvc_solve_options){
        .struct_bytes = sizeof(o), .bpd = 3, .method = KVC_METHOD_PAPER_MSE, .paper = &paper};
    solve_options_for(&same, METHOD_PAPER_MSE, 3);
    same.paper.B_min = 4;
    same.paper.eta = 0.2;
    same.paper.rounds = 3;
    same.paper.rank_step = 4;
    same.paper.b_max = 6;
    expect_same_table(s, &o, &same);
    api_deinit(&f);
}

static void test_levels_from(void)
{
    struct api f;
    kvc_stats *s = make(&f, KVC_WITH_OUTPUT);
    _cleanup_(freep) void *levels = NULL, *bytes = NULL;
    kvc_solve_options o = {.struct_bytes = sizeof(o), .bpd = 4};
    struct solve_options same;
    struct table *t = NULL;
    struct errmsg e = {""};
    size_t n = 0, n_bytes = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_solve(s, &o, &levels, &n, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(levels, n, &t, &e), 0);
    o.bpd = 2;
    o.levels_from = levels;
    o.levels_from_bytes = n;
    solve_options_for(&same, METHOD_BANDS, 2);
    same.metric = METRIC_OUTPUT;
    same.fit_levels = false;
    same.levels_from = t;
    expect_same_table(s, &o, &same);
    o.levels_from_bytes = n - 1;
    EXPECT_REFUSED(&f, kvc_solve(s, &o, &bytes, &n_bytes, NULL), -EBADMSG, "levels_from: ");
    o.levels_from_bytes = 0;
    EXPECT_REFUSED(&f, kvc_solve(s, &o, &bytes, &n_bytes, NULL), -EINVAL,
                   "levels_from is a table of 0 bytes");
    CU_ASSERT_PTR_NULL(bytes);
    (void) table_unref(t);
    api_deinit(&f);
}

static void count_progress(void *ctx, const char *what, double fraction)
{
    unsigned *n = ctx;

    CU_ASSERT_PTR_NOT_NULL(what);
    CU_ASSERT(fraction >= 0 && fraction <= 1);
    (*n)++;
}

static void test_refusals(void)
{
    struct api f;
    kvc_stats *s = make(&f, KVC_WITH_OUTPUT), *empty;
    kvc_paper_options paper = {.struct_bytes = sizeof(paper)};
    kvc_solve_options o = {.struct_bytes = sizeof(o), .bpd = 3}, bad;
    kvc_solve_report report = {.struct_bytes = 4};
    void *bytes = NULL;
    size_t n = 0;
    unsigned n_calls = 0;

    CU_ASSERT_EQUAL(kvc_solve(NULL, &o, &bytes, &n, NULL), -EINVAL);
    EXPECT_REFUSED(&f, kvc_solve(s, NULL, &bytes, &n, NULL), -EINVAL, "o, ret_bytes or ret_n_bytes is NULL");
    EXPECT_REFUSED(&f, kvc_solve(s, &o, &bytes, &n, &report), -EINVAL, "sizeof(kvc_solve_report)");
    bad = o;
    bad.method = 4;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "method is 4");
    bad = o;
    bad.metric = 6;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "metric is 6");
    bad = o;
    bad.decoder = 3;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "decoder is 3");
    bad = o;
    bad.flags = 32;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "flags is 0x20");
    bad = o;
    bad.bpd = 9;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "a budget of 9 bits");
    bad = o;
    bad.paper = &paper;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "paper is for the methods");
    bad = o;
    bad.metric = KVC_METRIC_FISHER;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -EINVAL, "radients");
    bad = o;
    bad.floor_bpd = 4;
    EXPECT_REFUSED(&f, kvc_solve(s, &bad, &bytes, &n, NULL), -ERANGE, "the smallest possible budget");
    empty = api_stats(&f, KVC_WITH_OUTPUT);
    EXPECT_REFUSED(&f, kvc_solve(empty, &o, &bytes, &n, NULL), -EINVAL, "the statistics are empty");
    CU_ASSERT_PTR_NULL(bytes);

    o.progress = count_progress;
    o.progress_ctx = &n_calls;
    CU_ASSERT_EQUAL(kvc_solve(s, &o, &bytes, &n, NULL), 0);
    CU_ASSERT(n_calls > 0);
    free(bytes);
    api_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_defaults), TEST(test_every_option), TEST(test_levels_from), TEST(test_refusals), TEST_END,
};
