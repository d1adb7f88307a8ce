/* Which known name is near to a mistyped one, and which is too far. */
#include "base/nearest.h"

#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "nearest";

static const char *nearest_of(const char *typed)
{
    static const char *const names[] = {"status", "solve", "calibrate", "pool-bytes", "a"};
    struct nearest n;

    nearest_init(&n, typed);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        nearest_try(&n, names[i]);
    return n.best ? n.best : "none";
}

static void test_near(void)
{
    CU_ASSERT_STRING_EQUAL(nearest_of("calibrat"), "calibrate");
    CU_ASSERT_STRING_EQUAL(nearest_of("pool_bytes"), "pool-bytes");
    CU_ASSERT_STRING_EQUAL(nearest_of("sovle"), "solve");
    CU_ASSERT_STRING_EQUAL(nearest_of("status"), "status");
}

static void test_far(void)
{
    CU_ASSERT_STRING_EQUAL(nearest_of("xyzxyz"), "none");
    CU_ASSERT_STRING_EQUAL(nearest_of("calibrate-and-something-very-long"), "none");
    CU_ASSERT_STRING_EQUAL(nearest_of(""), "none"); /* "a" differs in its only letter */
}

const struct test_case test_cases[] = {TEST(test_near), TEST(test_far), TEST_END};
