/* Memory as the kernel counts it: written pages of an object, and the growth of the heap. */
#include "daemon/loop/usage.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/test.h"

const char test_suite[] = "usage";

enum { MIB = 1 << 20 };

static void test_object(void)
{
    int fd = memfd_create("kvc-test", MFD_CLOEXEC);

    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, 4 * MIB) == 0);
    CU_ASSERT_EQUAL(usage_of_fd(fd), 0);
    CU_ASSERT_EQUAL(pwrite(fd, "x", 1, MIB), 1);
    CU_ASSERT_EQUAL(usage_of_fd(fd), (uint64_t) sysconf(_SC_PAGESIZE));
    (void) close(fd);
    CU_ASSERT_EQUAL(usage_of_fd(fd), 0);
    CU_ASSERT_EQUAL(usage_of_fd(-1), 0);
}

static void test_process(void)
{
    uint64_t before = usage_of_process(), with;
    /* as malloc() allocates large blocks; free() of the address sanitizer keeps them */
    void *heap = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *shared = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CU_ASSERT_FATAL(heap != MAP_FAILED && shared != MAP_FAILED);
    memset(heap, 1, 32 * MIB);
    memset(shared, 1, 32 * MIB); /* does not count */
    with = usage_of_process();
    CU_ASSERT(before > 0 && with >= before + 31 * MIB && with < before + 40 * MIB);
    (void) munmap(heap, 32 * MIB);
    (void) munmap(shared, 32 * MIB);
    CU_ASSERT(usage_of_process() < before + 8 * MIB);
}

const struct test_case test_cases[] = {TEST(test_object), TEST(test_process), TEST_END};
