/* Names of methods, metrics, curves and quantisers. */
#include <errno.h>

#include "alloc/solve/solve_names.h"
#include "tests/lib/test.h"

static void test_names(void)
{
    enum method m;
    enum metric metric;
    enum curve c;
    enum quantiser q;

    CU_ASSERT_EQUAL(solve_method_from_name("paper-kl", &m), 0);
    CU_ASSERT_EQUAL(m, METHOD_PAPER_KL);
    CU_ASSERT_STRING_EQUAL(solve_method_name(m), "paper-kl");
    CU_ASSERT_EQUAL(solve_metric_from_name("attention", &metric), 0);
    CU_ASSERT_STRING_EQUAL(solve_metric_name(metric), "attention");
    CU_ASSERT_EQUAL(solve_curve_from_name("gaussian", &c), 0);
    CU_ASSERT_STRING_EQUAL(solve_curve_name(c), "gaussian");
    CU_ASSERT_EQUAL(solve_quantiser_from_name("uniform-midtread", &q), 0);
    CU_ASSERT_STRING_EQUAL(solve_quantiser_name(q), "uniform-midtread");
    CU_ASSERT_EQUAL(solve_curve_from_name("", &c), -EINVAL);
}

const struct test_case test_cases[] = {TEST(test_names), TEST_END};
const char test_suite[] = "solve_names";
