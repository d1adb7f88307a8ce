/* Why an io_uring is not to be had, so that a person changes the right thing. */
#include "daemon/loop/uring.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"

const char test_suite[] = "uring";

enum { NOBODY = 65534 };

static void test_reasons(void)
{
    CU_ASSERT_PTR_NOT_NULL(strstr(uring_explain(-ENOMEM), "LimitMEMLOCK="));
    CU_ASSERT_PTR_NULL(strstr(uring_explain(-ENOMEM), "io_uring_disabled"));
    CU_ASSERT_PTR_NOT_NULL(strstr(uring_explain(-EPERM), "kernel.io_uring_disabled"));
    CU_ASSERT_PTR_NOT_NULL(strstr(uring_explain(-ENOSYS), "kernel"));
    CU_ASSERT_STRING_EQUAL(uring_explain(-EMFILE), strerror(EMFILE));
}

/* Without the right to lock memory. Some kernels do not count rings as locked memory. */
static void test_limit_of_locked_memory(void)
{
    const struct rlimit none = {0, 0};
    struct io_uring ring;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (setrlimit(RLIMIT_MEMLOCK, &none) < 0 || (geteuid() == 0 && setuid(NOBODY) < 0))
            _exit(1);
        status = uring_init(&ring, 64, 256);
        _exit(status == -ENOMEM || status == -EPERM || status == -ENOSYS || status == 0 ? 0 : 2);
    }
    CU_ASSERT(waitpid(pid, &status, 0) == pid && status == 0);
}

const struct test_case test_cases[] = {
    TEST(test_reasons),
    TEST(test_limit_of_locked_memory),
    TEST_END,
};
