/* gpu/cuda/driver.c on a machine without a driver, and with one that is too old: run with a library path
 * that holds no driver, or an old one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/cuda/driver.h"
#include "tests/lib/test.h"

static void test_a_sentence(void)
{
    const char *what = getenv("TEST_DRIVER");
    struct cuda_driver *d = NULL;
    struct errmsg e = {""};
    int r = cuda_driver_open(&d, &e);

    if (r == 0) { /* no library path can hide a driver that is really installed */
        cuda_driver_close(d);
        test_skip("this machine has a driver");
        return;
    }
    CU_ASSERT_TRUE(r == -EOPNOTSUPP || r == -ENODEV);
    CU_ASSERT_PTR_NULL(d);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "NVIDIA driver"));
    if (what && strcmp(what, "old") == 0)
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "too old"));
}

const char test_suite[] = "no gpu driver";
const struct test_case test_cases[] = {TEST(test_a_sentence), TEST_END};
