/* Finding a driver and a device, and the sentences if there is none. The
 * environment controls the stand-in. */
#include "gpu/cuda/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

/* Opens with one setting of the stand-in changed. */
static int open_with(const char *name, const char *value, struct cuda_driver **ret, struct errmsg *e)
{
    int r;

    CU_ASSERT_EQUAL(setenv(name, value, 1), 0);
    *ret = NULL;
    r = cuda_driver_open(ret, e);
    CU_ASSERT_EQUAL(unsetenv(name), 0);
    return r;
}

static void test_versions(void)
{
    struct errmsg e = {""};
    struct cuda_driver *d;

    CU_ASSERT_EQUAL(open_with("STANDIN_VERSION", "11040", &d, &e), 0);
    CU_ASSERT_EQUAL(d->version, 11040);
    cuda_driver_close(d);
    CU_ASSERT_EQUAL(open_with("STANDIN_VERSION", "11030", &d, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NULL(d);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "11.3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "11.4"));
}

static void test_no_device(void)
{
    struct errmsg e = {""};
    struct cuda_driver *d;

    CU_ASSERT_EQUAL(open_with("STANDIN_DEVICES", "0", &d, &e), -ENODEV);
    CU_ASSERT_PTR_NULL(d);
}

static void test_broken_driver(void)
{
    struct errmsg e = {""};
    struct cuda_driver *d;

    CU_ASSERT_EQUAL(open_with("STANDIN_FAIL", "cuInit:1:803", &d, &e), -EOPNOTSUPP); /* versions differ */
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "reboot"));
    CU_ASSERT_EQUAL(open_with("STANDIN_FAIL", "cuInit:1:12345", &d, &e), -EIO); /* an unknown error */
}

static void test_devices_by_uuid(void)
{
    struct cuda_device_info info = {0};
    struct errmsg e = {""};
    struct cuda_driver *d;
    char text[CUDA_UUID_CHARS];

    CU_ASSERT_EQUAL_FATAL(open_with("STANDIN_DEVICES", "2", &d, &e), 0);
    CU_ASSERT_EQUAL(cuda_device_find(d, "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1", &info, &e), 0);
    CU_ASSERT_EQUAL(info.ordinal, 1);
    CU_ASSERT_EQUAL(info.compute, 90);
    CU_ASSERT_STRING_EQUAL(info.name, "stand-in GPU 1");
    cuda_uuid_format(&info.uuid, text);
    CU_ASSERT_STRING_EQUAL(text, "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1");
    CU_ASSERT_EQUAL(cuda_device_find(d, "C1C1C1C1C1C1C1C1C1C1C1C1C1C1C1C1", &info, &e), 0);
    CU_ASSERT_EQUAL(cuda_device_find(d, NULL, &info, &e), 0);
    CU_ASSERT_EQUAL(info.ordinal, 0);
    CU_ASSERT_EQUAL(cuda_device_find(d, "GPU-00000000-0000-0000-0000-000000000000", &info, &e), -ENODEV);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "GPU-c0c0c0c0"));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "GPU-c1c1c1c1"));
    CU_ASSERT_EQUAL(cuda_device_find(d, "", &info, &e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_device_find(d, "GPU-c1c1", &info, &e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_device_find(d, "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1c", &info, &e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_device_find(d, "the fast one", &info, &e), -EINVAL);
    cuda_driver_close(d);
}

static void test_a_device_without_descriptors(void)
{
    struct cuda_device_info info;
    struct errmsg e = {""};
    struct cuda_driver *d;

    CU_ASSERT_EQUAL_FATAL(open_with("STANDIN_NO_FD", "1", &d, &e), 0);
    CU_ASSERT_EQUAL(cuda_device_find(d, NULL, &info, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "stand-in GPU 0"));
    cuda_driver_close(d);
}

static void test_fatal_errors(void)
{
    static const struct {
        cu_result result;
        bool fatal;
    } cases[] = {
        {CU_SUCCESS, false},
        {CU_OUT_OF_MEMORY, false},
        {CU_INVALID_VALUE, false},
        {CU_ILLEGAL_ADDRESS, true},
        {702, true},  /* launch timed out */
        {704, false}, /* peer access is on already */
        {708, false}, /* primary context active */
        {CU_CONTEXT_IS_DESTROYED, true},
        {710, true},  /* assert */
        {712, false}, /* host memory registered already */
        {716, true},  /* misaligned */
        {CU_LAUNCH_FAILED, true},
        {CU_ECC_UNCORRECTABLE, true},
        {CU_NOT_SUPPORTED, false},
        {CU_UNKNOWN, true},
        {CU_MPS_CLIENT_TERMINATED, true},
        {CU_MPS_CONNECTION_FAILED, false},
        {CU_CONTAINED, true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CU_ASSERT_EQUAL(cuda_is_fatal(cases[i].result), cases[i].fatal);
}

const char test_suite[] = "gpu driver";
const struct test_case test_cases[] = {
    TEST(test_versions),
    TEST(test_no_device),
    TEST(test_broken_driver),
    TEST(test_devices_by_uuid),
    TEST(test_a_device_without_descriptors),
    TEST(test_fatal_errors),
    TEST_END,
};
