/* Solving with trellis-coded levels. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "alloc/table/table_half.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/unit/alloc/shapes.h"

/* At equal bits a trellis loses less than scalar levels, and more states less; the report measures what the
 * finished table does. */
static void test_trellis(void)
{
    static const uint32_t states[] = {0, 64, 256};
    struct geometry g = shape(1, 2, 2, 32, 32);
    struct stats *s = shape_statistics(&g, 512, 8);
    double distortion[3];

    for (unsigned i = 0; i < 3; i++) {
        struct table *t = NULL;
        struct solve_options o;
        struct solve_report report;
        struct errmsg e = {""};
        void *bytes;
        size_t n;

        solve_options_default(&o, 2);
        solve_options_least_squares(&o);
        o.metric = METRIC_MSE;
        o.trellis_states = states[i];
        CU_ASSERT_EQUAL_FATAL(solve_table(s, &o, &bytes, &n, &report, &e), 0);
        CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
        distortion[i] = report.distortion;
        CU_ASSERT_EQUAL(table_has_trellis(t), states[i] > 0);
        CU_ASSERT_EQUAL(levels_count(&t->levels[SIDE_V][2], 2), states[i] > 0 ? states[i] : 4);
        CU_ASSERT(report.distortion < 1.1 * report.distortion_estimated);
        (void) table_unref(t);
        free(bytes);
    }
    CU_ASSERT(distortion[1] < 0.86 * distortion[0]);
    CU_ASSERT(distortion[2] < 0.98 * distortion[1]);
    (void) stats_free(s);
}

/* A table with a trellis has matrices of binary16, unless options say binary32; one without has binary32. */
static void test_matrices(void)
{
    struct geometry g = shape(1, 2, 2, 32, 32);
    struct stats *s = shape_statistics(&g, 512, 8);
    double distortion[2] = {0};
    size_t n_bytes[2] = {0};

    for (unsigned i = 0; i < 3; i++) {
        struct table *t = NULL;
        struct solve_options o, read;
        struct solve_report report;
        struct errmsg e = {""};
        uint8_t digest[DIGEST_BYTES];
        void *bytes;
        size_t n;

        solve_options_default(&o, 3);
        o.metric = METRIC_MSE;
        o.half_matrices = i != 1;
        o.trellis_states = i == 2 ? 0 : 64;
        CU_ASSERT_EQUAL_FATAL(solve_table(s, &o, &bytes, &n, &report, &e), 0);
        CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
        CU_ASSERT_EQUAL(table_has_half_matrices(t), i == 0);
        CU_ASSERT_EQUAL(solve_options_read(t->provenance, &read, digest, &e), 0);
        CU_ASSERT_EQUAL(read.half_matrices, i == 0);
        if (i < 2) {
            distortion[i] = report.distortion;
            n_bytes[i] = n;
        }
        (void) table_unref(t);
        free(bytes);
    }
    CU_ASSERT_DOUBLE_EQUAL(distortion[0], distortion[1], 0.01 * distortion[1]);
    CU_ASSERT(n_bytes[0] < n_bytes[1]);
    (void) stats_free(s);
}

/* A trellis of another size, one of a uniform quantiser, one of the paper's methods. */
static void test_impossible_trellises(void)
{
    static const char *const sentence[] = {"32 states", "uniform quantiser", "no trellis"};
    struct geometry g = shape(1, 2, 2, 32, 32);
    struct stats *s = shape_statistics(&g, 512, 2);

    for (unsigned i = 0; i < 3; i++) {
        struct solve_options o;
        struct solve_report report;
        struct errmsg e;
        void *bytes;
        size_t n;

        solve_options_for(&o, i == 2 ? METHOD_PAPER_KL : METHOD_BANDS, 2);
        o.trellis_states = i == 0 ? 32 : 64;
        o.quantiser = i == 1 ? QUANT_UNIFORM : o.quantiser;
        o.fit_levels = i == 0;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, sentence[i]));
    }
    (void) stats_free(s);
}

const struct test_case test_cases[] = {TEST(test_trellis), TEST(test_matrices),
                                       TEST(test_impossible_trellises), TEST_END};
const char test_suite[] = "solve_trellis";
