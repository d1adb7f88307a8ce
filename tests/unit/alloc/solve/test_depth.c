/* A table for one layer and side, and the distortion of given errors. */
#include <stdlib.h>

#include "alloc/solve/depth.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/table.h"
#include "tests/unit/alloc/shapes.h"

/* Codes for one layer and side only; the distortion of given errors by hand. */
static void test_layer_table(void)
{
    struct geometry g = shape(3, 4, 2, 32, 32);
    struct stats *s = shape_statistics(&g, 200, 3);
    struct table *t = NULL;
    struct errmsg e = {""};
    float x[2][64] = {{0}}, x_hat[2][64] = {{0}};
    void *bytes = NULL;
    size_t n;
    double want;

    CU_ASSERT_EQUAL_FATAL(depth_layer_table(s, 1, SIDE_V, 2.5, 3, &bytes, &n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
    for (uint32_t hs = 0; hs < head_side_count(&g); hs++)
        CU_ASSERT_EQUAL(t->codecs[hs].r > 0, hs == 5 || hs == 7);
    CU_ASSERT(t->codecs[5].code_bits + t->codecs[7].code_bits <= 160);
    CU_ASSERT(t->codecs[5].code_bits + t->codecs[7].code_bits > 152);
    x_hat[0][3] = 2; /* head 0: 4 M_33 / 2 tokens; head 1: 1 M_00 / 2 */
    x_hat[1][32] = -1;
    want = (4 * s->metric[5 * 1024 + 3 * 33] + s->metric[7 * 1024]) / 2 / (double) stats_tokens(s);
    CU_ASSERT_DOUBLE_EQUAL(depth_distortion(s, 1, SIDE_V, x[0], x_hat[0], 2, 64), want, 1e-9 * want);
    free(bytes);
    (void) table_unref(t);
    (void) stats_free(s);
}

const struct test_case test_cases[] = {TEST(test_layer_table), TEST_END};
const char test_suite[] = "depth";
