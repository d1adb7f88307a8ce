/* Tests of daemon/offload/offload_rate.c: bursts, what they measure, and what is worth a wait. */
#include "daemon/offload/offload_rate.h"

#include "tests/lib/test.h"

const char test_suite[] = "offload_rate";

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static void test_burst(void)
{
    struct offload_rate r = {0};

    CU_ASSERT(offload_rate_now(&r, 5 * SECOND) == 0);
    for (unsigned i = 0; i < 10; i++) /* 10 pages of 1 MB, all at once, in 10 ms: 1 GB/s */
        offload_rate_begin(&r, 5 * SECOND);
    for (unsigned i = 0; i < 10; i++)
        offload_rate_end(&r, 1000000, 5 * SECOND + (i + 1) * MS);
    CU_ASSERT_DOUBLE_EQUAL(offload_rate_now(&r, 6 * SECOND), 1e9, 1);

    /* the pause between two bursts does not count; a quarter of the new rate does */
    offload_rate_begin(&r, 20 * SECOND);
    offload_rate_end(&r, 1000000, 20 * SECOND + 2 * MS);
    CU_ASSERT_DOUBLE_EQUAL(offload_rate_now(&r, 21 * SECOND), 0.875e9, 1);

    /* after a minute the tier is tried again */
    CU_ASSERT(offload_rate_now(&r, 20 * SECOND + 2 * MS + OFFLOAD_RATE_KEEP_NS) > 0);
    CU_ASSERT(offload_rate_now(&r, 20 * SECOND + 3 * MS + OFFLOAD_RATE_KEEP_NS) == 0);
}

/* A burst without an end is measured each second. */
static void test_long_burst(void)
{
    struct offload_rate r = {0};

    offload_rate_begin(&r, SECOND);
    for (unsigned i = 1; i <= 30; i++) { /* 100 KB each 100 ms */
        offload_rate_begin(&r, SECOND + i * 100 * MS);
        offload_rate_end(&r, 100000, SECOND + i * 100 * MS);
    }
    CU_ASSERT_DOUBLE_EQUAL(offload_rate_now(&r, 4 * SECOND), 1e6, 1);
    offload_rate_end(&r, 0, 4 * SECOND);
}

/* Misses measure nothing. */
static void test_misses(void)
{
    struct offload_rate r = {0};

    offload_rate_begin(&r, SECOND);
    offload_rate_end(&r, 0, 2 * SECOND);
    CU_ASSERT(offload_rate_now(&r, 2 * SECOND) == 0);
    CU_ASSERT_TRUE(offload_rate_reaches(&r, UINT64_MAX, 2 * SECOND)); /* nothing is known */
}

static void test_reaches(void)
{
    struct offload_rate r = {0};

    offload_rate_begin(&r, SECOND);
    offload_rate_end(&r, 64000, SECOND + 10 * MS); /* 6.4 MB/s */
    CU_ASSERT_TRUE(offload_rate_reaches(&r, 0, 2 * SECOND));
    CU_ASSERT_TRUE(offload_rate_reaches(&r, 6399999, 2 * SECOND));
    CU_ASSERT_FALSE(offload_rate_reaches(&r, 6400001, 2 * SECOND));
    CU_ASSERT_FALSE(offload_rate_reaches(&r, UINT64_MAX, 2 * SECOND));
    CU_ASSERT_TRUE(offload_rate_reaches(&r, UINT64_MAX, 2 * SECOND + OFFLOAD_RATE_KEEP_NS)); /* tried again */
}

const struct test_case test_cases[] = {TEST(test_burst), TEST(test_long_burst), TEST(test_misses),
                                       TEST(test_reaches), TEST_END};
