/* Counting requests and errors, at the bounds of buckets, types and errnos. */
#include "daemon/loop/metrics.h"

#include <errno.h>

#include "tests/lib/test.h"

const char test_suite[] = "metrics";

static void test_buckets(void)
{
    static struct metrics m;

    metrics_note_request(&m, 33, 0, 0);
    metrics_note_request(&m, 33, 10000, 0); /* a bound belongs to its bucket, as the label "le" means */
    metrics_note_request(&m, 33, 10001, -EDQUOT);
    metrics_note_request(&m, 33, 1000000000, 0);
    metrics_note_request(&m, 33, 1000000001, -ENOSPC);
    metrics_note_request(&m, 33, UINT64_C(1) << 40, -ENOSPC);
    CU_ASSERT_EQUAL(m.requests[33].counts[0], 2);
    CU_ASSERT_EQUAL(m.requests[33].counts[1], 1);
    CU_ASSERT_EQUAL(m.requests[33].counts[METRICS_BUCKETS - 2], 1);
    CU_ASSERT_EQUAL(m.requests[33].counts[METRICS_BUCKETS - 1], 2);
    CU_ASSERT_EQUAL(m.requests[33].sum_ns, 10000 + 10001 + 2000000001 + (UINT64_C(1) << 40));
    CU_ASSERT_EQUAL(m.errors[EDQUOT], 1);
    CU_ASSERT_EQUAL(m.errors[ENOSPC], 2);
    CU_ASSERT_EQUAL(m.errors[0], 0);
}

/* Types and errnos out of range are counted inside the arrays. */
static void test_bounds(void)
{
    static struct metrics m;

    metrics_note_request(&m, METRICS_TYPES_MAX - 1, 1, -(METRICS_ERRNO_MAX - 1));
    metrics_note_request(&m, METRICS_TYPES_MAX, 1, -METRICS_ERRNO_MAX);
    metrics_note_request(&m, UINT32_MAX, 1, INT32_MIN + 1);
    CU_ASSERT_EQUAL(m.requests[METRICS_TYPES_MAX - 1].counts[0], 1);
    CU_ASSERT_EQUAL(m.requests[0].counts[0], 2);
    CU_ASSERT_EQUAL(m.errors[METRICS_ERRNO_MAX - 1], 3);
}

const struct test_case test_cases[] = {TEST(test_buckets), TEST(test_bounds), TEST_END};
