/* Runs of tokens that are new. */
#include "base/cleanup.h"
#include "base/splitmix64.h"
#include "tests/lib/test.h"
#include "tools/calibrate/novelty.h"

static void test_novelty_counts(void)
{
    _cleanup_(novelty_deinit) struct novelty seen = {NULL};
    uint32_t text[200];
    size_t n = 7;

    for (size_t i = 0; i < 200; i++)
        text[i] = (uint32_t) splitmix64_seed(1, i);
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, NOVELTY_RUN - 1, &n), 0);
    CU_ASSERT_EQUAL(n, 0); /* too short for a run */
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, NOVELTY_RUN, &n), 0);
    CU_ASSERT_EQUAL(n, 1);
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 100 - NOVELTY_RUN); /* of 85 runs the first is known */
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text + 50, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 50); /* those that end behind token 100 */
    text[60]++;
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, 100, &n), 0);
    CU_ASSERT_EQUAL(n, NOVELTY_RUN); /* those that contain token 60 */
}

/* A text of one token, and one of a short period, have as many runs as their period. */
static void test_novelty_periods(void)
{
    _cleanup_(novelty_deinit) struct novelty seen = {NULL};
    uint32_t text[1000] = {0};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, 1000, &n), 0);
    CU_ASSERT_EQUAL(n, 1);
    for (size_t i = 0; i < 1000; i++)
        text[i] = (uint32_t) (1 + i % 37);
    CU_ASSERT_EQUAL_FATAL(novelty_add(&seen, text, 1000, &n), 0);
    CU_ASSERT_EQUAL(n, 37);
}

const struct test_case test_cases[] = {TEST(test_novelty_counts), TEST(test_novelty_periods), TEST_END};
const char test_suite[] = "novelty";
