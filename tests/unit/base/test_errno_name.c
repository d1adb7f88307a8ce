/* Names of error numbers: those of this C library, which has had them since glibc 2.32. */
#include <limits.h>
#include <string.h>

#include "base/errno_name.h"
#include "tests/lib/test.h"

static void test_same_as_libc(void)
{
    for (int i = -1; i <= 300; i++) {
        const char *wanted = i > 0 ? strerrorname_np(i) : NULL, *name = errno_name(i);

        CU_ASSERT(wanted ? name && strcmp(name, wanted) == 0 : !name);
    }
    CU_ASSERT_PTR_NULL(errno_name(INT_MIN));
    CU_ASSERT_PTR_NULL(errno_name(INT_MAX));
}

const struct test_case test_cases[] = {
    TEST(test_same_as_libc),
    TEST_END,
};
const char test_suite[] = "errno_name";
