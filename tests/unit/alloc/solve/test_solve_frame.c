/* Solving keys with bases in two blocks, fast and slow RoPE planes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/unit/alloc/shapes.h"

/* Frequencies are 10000^(-i / 16): four planes turn by more than 0.1 radians per token, one by 0.1. */
enum { D = 32, FAST = 4 };

static struct table *solved(const struct stats *s, const struct solve_options *o, struct solve_report *ret)
{
    _cleanup_(freep) void *bytes = NULL;
    struct table *t = NULL;
    struct errmsg e = {""};
    size_t n;

    CU_ASSERT_EQUAL_FATAL(solve_table(s, o, &bytes, &n, ret, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
    return t;
}

/* Parsing checks that the matrices are in blocks. The same bits lose more, but less than half again: only
 * what the blocks have in common is lost. */
static void check_frame(enum decoder decoder, uint32_t states)
{
    struct geometry g = shape(1, 2, 2, D, D);
    _cleanup_(stats_freep) struct stats *s = shape_statistics(&g, 512, 8);
    double distortion[2], other[2];

    for (unsigned i = 0; i < 2; i++) {
        _cleanup_(table_unrefp) struct table *t = NULL;
        struct solve_options o, read;
        struct solve_report report;
        struct errmsg e = {""};
        uint8_t digest[DIGEST_BYTES];

        solve_options_default(&o, 3);
        solve_options_least_squares(&o);
        o.metric = METRIC_MSE;
        o.trellis_states = states;
        o.decoder = decoder;
        o.k_bpd = o.v_bpd = 3;
        o.blocks = i == 1;
        t = solved(s, &o, &report);
        for (uint32_t hs = 0; hs < head_side_count(&g); hs++)
            CU_ASSERT_EQUAL(t->codecs[hs].fast_planes, i == 1 && hs % 2 == SIDE_K ? FAST : 0);
        CU_ASSERT(t->codecs[0].fast_halves != 0 || i == 0);
        CU_ASSERT_EQUAL(solve_options_read(t->provenance, &read, digest, &e), 0);
        CU_ASSERT_EQUAL(read.blocks, i == 1);
        CU_ASSERT(report.distortion < 1.15 * report.distortion_estimated);
        distortion[i] = report.distortion_k;
        other[i] = report.distortion_v;
    }
    CU_ASSERT(distortion[1] > 1.001 * distortion[0]);
    CU_ASSERT(distortion[1] < 1.5 * distortion[0]);
    CU_ASSERT_DOUBLE_EQUAL(other[1], other[0], 0.1 * other[0]);
}

static void test_inverse(void)
{
    check_frame(DECODER_INVERSE, 0);
}

static void test_least_squares(void)
{
    check_frame(DECODER_LEAST_SQUARES, 0);
}

static void test_trellis(void)
{
    check_frame(DECODER_LEAST_SQUARES, 64);
}

/* A decoder in blocks that is fitted to codes loses less than the inverse, on the same codes. */
static void test_decoder(void)
{
    struct geometry g = shape(1, 2, 2, D, D);
    _cleanup_(stats_freep) struct stats *s = shape_statistics(&g, 512, 8);
    double distortion[2];

    for (unsigned i = 0; i < 2; i++) {
        struct solve_report report;
        struct solve_options o;

        solve_options_default(&o, 1.5);
        solve_options_least_squares(&o);
        o.metric = METRIC_MSE;
        o.trellis_states = 0;
        o.blocks = true;
        o.v_from = PREDICT_NONE;
        o.decoder = i == 0 ? DECODER_INVERSE : DECODER_LEAST_SQUARES;
        (void) table_unref(solved(s, &o, &report));
        distortion[i] = report.distortion_k;
    }
    CU_ASSERT(distortion[1] < 0.999 * distortion[0]);
}

/* One of the paper's methods; a model whose planes are all slow, and one without RoPE. */
static void test_impossible(void)
{
    for (unsigned i = 0; i < 3; i++) {
        struct geometry g = shape(1, 2, 2, D, i == 2 ? 0 : D);
        _cleanup_(stats_freep) struct stats *s = NULL;
        struct solve_report report;
        struct solve_options o;
        struct errmsg e = {""};
        void *bytes;
        size_t n;

        for (uint32_t p = 0; p < g.n_rot / 2 && i == 1; p++)
            g.freq[p] *= 0.05;
        s = shape_statistics(&g, 512, 2);
        solve_options_for(&o, i == 0 ? METHOD_PAPER_KL : METHOD_BANDS, 2);
        if (i > 0)
            o.metric = METRIC_MSE;
        o.blocks = true;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, i == 0 ? "no frame but 1" : "--frame 1"));
    }
}

const struct test_case test_cases[] = {TEST(test_inverse), TEST(test_least_squares), TEST(test_trellis),
                                       TEST(test_decoder), TEST(test_impossible),    TEST_END};
const char test_suite[] = "solve_frame";
