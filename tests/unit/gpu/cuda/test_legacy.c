/* Memory of cuMemAlloc() as an extent, by handles, on the stand-in driver: what may be exported, what
 * another process opens, what is refused, what is left open. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/extent.h"
#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"

enum { UNIT = 2 << 20 };

struct fixture {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    struct cuda_space *space;
    struct errmsg e;
};

static bool fixture_init(struct fixture *f)
{
    *f = (struct fixture){0};
    return cuda_driver_open(&f->driver, &f->e) == 0 &&
           cuda_device_find(f->driver, NULL, &f->device, &f->e) == 0 &&
           cuda_space_new(f->driver, &f->device, 8 * UNIT, &f->space, &f->e) == 0;
}

static void fixture_deinit(struct fixture *f)
{
    f->space = cuda_space_free(f->space);
    f->driver = cuda_driver_close(f->driver);
}

static cu_ptr take(struct fixture *f, size_t bytes)
{
    cu_ptr at = 0;

    CU_ASSERT_EQUAL_FATAL(cuda_space_enter(f->space, &f->e), 0);
    CU_ASSERT_EQUAL_FATAL(f->driver->mem_alloc(&at, bytes), CU_SUCCESS);
    cuda_space_leave(f->space);
    return at;
}

/* The export is refused with a sentence that contains @word, and writes nothing. */
static void expect_refusal(struct fixture *f, cu_ptr at, size_t bytes, int err, const char *word)
{
    struct cu_ipc_mem_handle handle = {"as it was"};

    errmsg_clear(&f->e);
    CU_ASSERT_EQUAL(cuda_legacy_export(f->space, at, bytes, &handle, &f->e), err);
    CU_ASSERT_STRING_EQUAL(handle.bytes, "as it was");
    if (!strstr(f->e.text, word))
        CU_FAIL(f->e.text);
}

static void test_what_can_be_exported(void)
{
    struct fixture f;
    struct cu_ipc_mem_handle handle, again;
    struct cuda_extent *x = NULL;
    cu_ptr at, odd;
    int fd = -1;

    CU_ASSERT_TRUE_FATAL(fixture_init(&f));
    at = take(&f, 2 * UNIT);
    odd = take(&f, UNIT / 2);
    CU_ASSERT_EQUAL(cuda_legacy_export(f.space, at, 2 * UNIT, &handle, &f.e), 0);
    CU_ASSERT_EQUAL(cuda_legacy_export(f.space, at, 2 * UNIT, &again, &f.e), 0);
    CU_ASSERT_EQUAL(memcmp(&handle, &again, sizeof(handle)), 0); /* the same memory has one handle */
    expect_refusal(&f, at, UNIT, -EINVAL, "whole");
    expect_refusal(&f, at + UNIT, UNIT, -EINVAL, "at offset 2097152 of an allocation");
    expect_refusal(&f, odd, UNIT / 2, -EINVAL, "multiples of 2097152");
    expect_refusal(&f, (cu_ptr) (uintptr_t) &f, UNIT, -EINVAL, "no GPU memory");
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, UNIT, &fd, &f.e), 0);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_import(f.space, take_fd(&fd), UNIT, CU_ACCESS_READ_WRITE, &x, &f.e), 0);
    expect_refusal(&f, cuda_extent_address(x), UNIT, -EINVAL, "cudaMalloc");
    x = cuda_extent_free(x);
    /* a driver without the attribute */
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", "cuPointerGetAttribute:1:1", 1), 0);
    fixture_deinit(&f);
    CU_ASSERT_TRUE_FATAL(fixture_init(&f));
    at = take(&f, UNIT);
    expect_refusal(&f, at, UNIT, -EINVAL, "the kind of");
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    fixture_deinit(&f);
}

/* The other process: opens, reads, writes, closes. Returns its exit status. */
static int borrower(int from, int to)
{
    struct fixture f;
    struct cu_ipc_mem_handle handle;
    struct cuda_extent *x = NULL, *y = NULL;
    char got[6];

    if (read(from, &handle, sizeof(handle)) != sizeof(handle) || !fixture_init(&f))
        return 1;
    if (cuda_extent_open(f.space, &handle, 2 * UNIT, &x, &f.e) != -EBADMSG || x)
        return 2;
    if (cuda_extent_open(f.space, &handle, UNIT, &x, &f.e) != 0 ||
        cuda_extent_open(f.space, &handle, UNIT, &y, &f.e) != 0)
        return 3;
    y = cuda_extent_free(y); /* opening is counted */
    if (cuda_extent_bytes(x) != UNIT || cuda_extent_read(x, UNIT - 6, got, 6, &f.e) != 0 ||
        strcmp(got, "owner") != 0)
        return 4;
    if (cuda_extent_allow_write(x, &f.e) != 0 || cuda_extent_write(x, 0, "other", 6, &f.e) != 0)
        return 5;
    x = cuda_extent_free(x);
    if (standin_look().opened != 0)
        return 6;
    if (write(to, "x", 1) != 1 || read(from, got, 1) != 1) /* the owner has ended from here on */
        return 7;
    if (cuda_extent_open(f.space, &handle, UNIT, &x, &f.e) != -ESTALE || x || !f.e.text[0])
        return 8;
    fixture_deinit(&f);
    return 0;
}

static void owner(int to, int from)
{
    struct fixture f;
    struct cu_ipc_mem_handle handle;
    struct cuda_extent *x = NULL, *own = NULL;
    char got[6], byte;
    cu_ptr at;
    bool good;

    if (!fixture_init(&f))
        _exit(1);
    at = take(&f, UNIT);
    good = cuda_legacy_export(f.space, at, UNIT, &handle, &f.e) == 0 &&
           cuda_extent_open(f.space, &handle, UNIT, &x, &f.e) == -ESTALE && !x && /* not in its own process */
           cuda_extent_borrow(f.space, at, UNIT, &own, &f.e) == 0 && cuda_extent_address(own) == at &&
           cuda_extent_write(own, UNIT - 6, "owner", 6, &f.e) == 0 &&
           write(to, &handle, sizeof(handle)) == sizeof(handle) && read(from, &byte, 1) == 1 &&
           cuda_extent_read(own, 0, got, 6, &f.e) == 0 && strcmp(got, "other") == 0;
    own = cuda_extent_free(own);
    good = good && standin_look().allocations == 1; /* the memory still belongs to the caller */
    fixture_deinit(&f);
    _exit(good ? 0 : 2);
}

static void test_between_processes(void)
{
    int down[2], up[2], status;
    pid_t a, b;

    CU_ASSERT_EQUAL_FATAL(pipe(down), 0);
    CU_ASSERT_EQUAL_FATAL(pipe(up), 0);
    a = fork();
    if (a == 0)
        owner(down[1], up[0]);
    b = fork();
    if (b == 0) {
        (void) close(down[1]);
        (void) close(up[0]);
        _exit(borrower(down[0], up[1]));
    }
    (void) close(up[1]);
    CU_ASSERT_EQUAL_FATAL(waitpid(a, &status, 0), a);
    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CU_ASSERT_EQUAL(write(down[1], "x", 1), 1);
    CU_ASSERT_EQUAL_FATAL(waitpid(b, &status, 0), b);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    (void) close(down[0]);
    (void) close(down[1]);
    (void) close(up[0]);
}

const char test_suite[] = "cuda_legacy";
const struct test_case test_cases[] = {TEST(test_what_can_be_exported), TEST(test_between_processes),
                                       TEST_END};
