/* UUIDs in the forms that people write, and lists of UUIDs. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/gpu_uuid.h"

const char test_suite[] = "gpu_uuid";

static const char plain[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

static void test_forms(void)
{
    static const char *const good[] = {
        "GPU-01234567-89ab-cdef-0123-456789abcdef",
        "MIG-01234567-89ab-cdef-0123-456789abcdef",
        "gpu-0123456789ABCDEF0123456789ABCDEF",
        "GPU-01-23-45-67-89-ab-cd-ef-01-23-45-67-89-ab-cd-ef-",
    };
    static const char *const bad[] = {
        "",
        "GPU-",
        "01234567-89ab-cdef-0123-456789abcdef",
        "GPU-01234567-89ab-cdef-0123-456789abcde",
        "GPU-01234567-89ab-cdef-0123-456789abcdef0",
        "GPU-01234567-89ab-cdef-0123-456789abcdeg",
        "GPU-01234567-89ab-cdef-0123-456789abcdef ",
        "CPU-01234567-89ab-cdef-0123-456789abcdef",
    };
    char text[GPU_UUID_BYTES];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CU_ASSERT_EQUAL(gpu_uuid_read(good[i], text), 0);
        CU_ASSERT_STRING_EQUAL(text, plain);
        CU_ASSERT(gpu_uuid_equal(good[i], plain) && gpu_uuid_equal(plain, good[i]));
    }
    (void) strcpy(text, "before");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CU_ASSERT_EQUAL(gpu_uuid_read(bad[i], text), -EINVAL);
        CU_ASSERT_STRING_EQUAL(text, "before");
        CU_ASSERT_FALSE(gpu_uuid_equal(bad[i], bad[i])); /* a text that is no UUID equals nothing */
    }
    CU_ASSERT_FALSE(gpu_uuid_equal(plain, "GPU-01234567-89ab-cdef-0123-456789abcdee"));
}

static void test_lists(void)
{
    char uuids[3][GPU_UUID_BYTES], text[512];
    struct errmsg e;
    uint32_t n = 9;

    CU_ASSERT(gpu_uuid_list(NULL, 3, uuids, &n, &e) == 0 && n == 0);
    CU_ASSERT(gpu_uuid_list("", 3, uuids, &n, &e) == 0 && n == 0);
    CU_ASSERT(gpu_uuid_list("first", 3, uuids, &n, &e) == 0 && n == 1);
    CU_ASSERT_STRING_EQUAL(uuids[0], "");
    (void) snprintf(text, sizeof(text), "%s,mig-ffffffffffffffffffffffffffffffff", plain);
    CU_ASSERT(gpu_uuid_list(text, 2, uuids, &n, &e) == 0 && n == 2);
    CU_ASSERT_STRING_EQUAL(uuids[0], plain);
    CU_ASSERT_STRING_EQUAL(uuids[1], "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff");
    CU_ASSERT_EQUAL(gpu_uuid_list(text, 1, uuids, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "more than 1 GPUs"));
    (void) snprintf(text, sizeof(text), "%s,%s", plain, "MIG-0123456789abcdef0123456789abcdef");
    CU_ASSERT_EQUAL(gpu_uuid_list(text, 3, uuids, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "twice"));
    (void) snprintf(text, sizeof(text), "%s,", plain);
    CU_ASSERT_EQUAL(gpu_uuid_list(text, 3, uuids, &n, &e), -EINVAL);
    (void) snprintf(text, sizeof(text), "%s,first", plain);
    CU_ASSERT_EQUAL(gpu_uuid_list(text, 3, uuids, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "\"first\""));
    CU_ASSERT_EQUAL(n, 2);
}

const struct test_case test_cases[] = {TEST(test_forms), TEST(test_lists), TEST_END};
