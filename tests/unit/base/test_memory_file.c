/* Memory objects: not executable where the kernel can forbid it, sealable, above the standard descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd_number.h"
#include "base/memory_file.h"
#include "tests/lib/test.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

const char test_suite[] = "memory_file";

static bool memory_file_kernel_forbids_execution(void)
{
    _cleanup_(closep) int fd = memfd_create("probe", MFD_CLOEXEC | MFD_NOEXEC_SEAL);

    return fd >= 0;
}

static void test_flags(void)
{
    _cleanup_(closep) int fd = memory_file_open("object");
    struct stat st;

    CU_ASSERT_FATAL(fd > STDERR_FILENO);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    if (!memory_file_kernel_forbids_execution()) {
        test_skip("the kernel has no MFD_NOEXEC_SEAL");
        return;
    }
    CU_ASSERT_EQUAL(fstat(fd, &st), 0);
    CU_ASSERT_EQUAL(st.st_mode & 0111, 0);
    CU_ASSERT(fchmod(fd, 0700) < 0 && errno == EPERM);
}

static void test_numbers(void)
{
    int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10), fd;

    CU_ASSERT_FATAL(saved >= 0);
    (void) close(STDIN_FILENO);
    fd = memory_file_open("object");
    CU_ASSERT(fd > STDERR_FILENO);
    CU_ASSERT(fcntl(STDIN_FILENO, F_GETFD) < 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fd_above_standard(fd), fd);
    errno = EMFILE;
    CU_ASSERT(fd_above_standard(-1) == -1 && errno == EMFILE);
    CU_ASSERT_EQUAL(dup2(saved, STDIN_FILENO), STDIN_FILENO);
    (void) close(saved);
    (void) close(fd);
}

const struct test_case test_cases[] = {
    TEST(test_flags),
    TEST(test_numbers),
    TEST_END,
};
