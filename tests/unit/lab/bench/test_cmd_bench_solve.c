/* kvcobra-lab bench solve through lab_main(). */
#include "lab/lab.h"
#define CAPTURE_MAIN lab_main
#include "tests/unit/tools/capture.h"

/* One repetition: the bench checks its results before it times them, so success means that they are
 * correct. */
static void test_bench_solve(void)
{
    json_t *j =
        captured_json((const char *[]){"kvcobra-lab", "bench", "solve", "--repeat", "1", "--json", NULL});
    const json_t *results = json_object_get(j, "results");

    CU_ASSERT_EQUAL(json_array_size(results), 9);
    for (size_t i = 0; i < json_array_size(results); i++)
        CU_ASSERT(json_real_value(json_object_get(json_array_get(results, i), "median_s")) > 0);
    json_decref(j);
}

const char test_suite[] = "cmd_bench_solve";
const struct test_case test_cases[] = {
    TEST(test_bench_solve),
    TEST_END,
};
