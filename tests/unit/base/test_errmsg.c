/* Codes of failures: always negative, also where the function that failed has not set errno. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

static int fail_with(struct errmsg *e, int err)
{
    return fail(e, err, "the %s is gone", "file");
}

static bool refuted(struct errmsg *e)
{
    return refute(e, "%d of %d", 1, 2);
}

static void test_code(void)
{
    struct errmsg e = {.text = ""};

    CU_ASSERT_EQUAL(fail_with(&e, -ENOENT), -ENOENT);
    CU_ASSERT_STRING_EQUAL(e.text, "the file is gone");
    CU_ASSERT_EQUAL(fail_with(NULL, -ENOENT), -ENOENT);
    CU_ASSERT_EQUAL(fail_with(&e, 0), -EIO);
    CU_ASSERT_EQUAL(fail_with(&e, ENOENT), -EIO);
}

/* @err is evaluated once, before the sentence is written. */
static void test_order(void)
{
    struct errmsg e = {.text = ""};
    int n = 0;

    errno = EPERM;
    CU_ASSERT_EQUAL(fail(&e, -errno, "%d", (errno = ENOENT)), -EPERM);
    CU_ASSERT_EQUAL(fail(&e, --n, "once"), -1);
}

static void test_refute(void)
{
    struct errmsg e = {.text = ""};

    CU_ASSERT_FALSE(refuted(&e));
    CU_ASSERT_STRING_EQUAL(e.text, "1 of 2");
    CU_ASSERT_FALSE(refuted(NULL));
    errmsg_clear(&e);
    CU_ASSERT_STRING_EQUAL(e.text, "");
}

const struct test_case test_cases[] = {
    TEST(test_code),
    TEST(test_order),
    TEST(test_refute),
    TEST_END,
};
const char test_suite[] = "errmsg";
