/* Extents in GPU memory against the stand-in driver, which enforces the rules of the driver: what is
 * shared, what is refused, what is left open. */
#include "gpu/cuda/extent.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"

#define MIB ((size_t) 1 << 20)

struct fixture {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    struct cuda_space *space;
    struct errmsg e;
};

static void fixture_init(struct fixture *f, size_t bytes)
{
    *f = (struct fixture){0};
    CU_ASSERT_EQUAL_FATAL(cuda_driver_open(&f->driver, &f->e), 0);
    CU_ASSERT_EQUAL_FATAL(cuda_device_find(f->driver, NULL, &f->device, &f->e), 0);
    CU_ASSERT_EQUAL_FATAL(cuda_space_new(f->driver, &f->device, bytes, &f->space, &f->e), 0);
}

static struct standin_left left(const struct fixture *f)
{
    standin_left_call call;
    void *address = dlsym(f->driver->library, "standin_left");

    CU_ASSERT_PTR_NOT_NULL_FATAL(address);
    memcpy(&call, &address, sizeof(call));
    return call();
}

/* Frees everything; nothing may be left open in the driver. */
static void fixture_deinit(struct fixture *f)
{
    struct standin_left l;

    f->space = cuda_space_free(f->space);
    l = left(f);
    CU_ASSERT_EQUAL(l.handles, 0);
    CU_ASSERT_EQUAL(l.ranges, 0);
    CU_ASSERT_EQUAL(l.mappings, 0);
    CU_ASSERT_EQUAL(l.contexts, 0);
    f->driver = cuda_driver_close(f->driver);
}

static int import_copy(struct fixture *f, int fd, size_t bytes, int access, struct cuda_extent **ret)
{
    return cuda_extent_import(f->space, fcntl(fd, F_DUPFD_CLOEXEC, 0), bytes, access, ret, &f->e);
}

static void test_two_mappings_share_bytes(void)
{
    struct fixture f;
    _cleanup_(closep) int fd = -1;
    struct cuda_extent *writer = NULL, *reader = NULL;
    char got[6];

    fixture_init(&f, 4 * MIB);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, MIB, &fd, &f.e), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL_FATAL(import_copy(&f, fd, MIB, CU_ACCESS_READ_WRITE, &writer), 0);
    CU_ASSERT_EQUAL_FATAL(import_copy(&f, fd, MIB, CU_ACCESS_READ, &reader), 0);
    CU_ASSERT_NOT_EQUAL(cuda_extent_address(writer), cuda_extent_address(reader));
    CU_ASSERT_EQUAL(cuda_extent_bytes(reader), MIB);
    CU_ASSERT_EQUAL(cuda_extent_write(writer, MIB - 6, "pages", 6, &f.e), 0);
    CU_ASSERT_EQUAL(cuda_extent_read(reader, MIB - 6, got, 6, &f.e), 0);
    CU_ASSERT_STRING_EQUAL(got, "pages");
    CU_ASSERT_EQUAL(cuda_extent_write(reader, 0, "x", 1, &f.e), -EPERM);
    CU_ASSERT_EQUAL(cuda_extent_read(reader, MIB - 5, got, 6, &f.e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_extent_read(reader, MIB + 1, got, 0, &f.e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_extent_read(reader, 1, got, SIZE_MAX, &f.e), -EINVAL);
    cuda_extent_free(writer);
    cuda_extent_free(reader);
    fixture_deinit(&f);
}

/* A descriptor alone holds the memory: the exporter may end, and a store may hold it over a restart. */
static void test_a_descriptor_keeps_memory(void)
{
    struct fixture f;
    int fd = -1;
    struct cuda_extent *x = NULL;
    char got[5];

    fixture_init(&f, MIB);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, MIB, &fd, &f.e), 0);
    CU_ASSERT_EQUAL_FATAL(import_copy(&f, fd, MIB, CU_ACCESS_READ_WRITE, &x), 0);
    CU_ASSERT_EQUAL(cuda_extent_write(x, 0, "kept", 5, &f.e), 0);
    x = cuda_extent_free(x);
    fixture_deinit(&f);

    fixture_init(&f, MIB); /* as a new process would */
    CU_ASSERT_EQUAL_FATAL(cuda_extent_import(f.space, fd, MIB, CU_ACCESS_READ, &x, &f.e), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), -1); /* the import closed it */
    CU_ASSERT_EQUAL(cuda_extent_read(x, 0, got, 5, &f.e), 0);
    CU_ASSERT_STRING_EQUAL(got, "kept");
    cuda_extent_free(x);
    fixture_deinit(&f);
}

/* Addresses return, in any order, and are enough for exactly what was reserved. */
static void test_addresses_are_reused(void)
{
    struct fixture f;
    _cleanup_(closep) int fd = -1;
    struct cuda_extent *x[4] = {NULL}, *one_more = NULL;
    cu_ptr second;

    fixture_init(&f, 4 * MIB);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, MIB, &fd, &f.e), 0);
    for (int i = 0; i < 4; i++)
        CU_ASSERT_EQUAL_FATAL(import_copy(&f, fd, MIB, CU_ACCESS_READ, &x[i]), 0);
    CU_ASSERT_EQUAL(import_copy(&f, fd, MIB, CU_ACCESS_READ, &one_more), -ENOSPC);
    second = cuda_extent_address(x[1]);
    x[1] = cuda_extent_free(x[1]);
    CU_ASSERT_EQUAL(import_copy(&f, fd, MIB, CU_ACCESS_READ, &one_more), 0);
    CU_ASSERT_EQUAL(cuda_extent_address(one_more), second);
    cuda_extent_free(one_more);
    for (int i = 0; i < 4; i++)
        cuda_extent_free(x[i]);
    fixture_deinit(&f);
}

static void test_writing_is_asked_for(void)
{
    struct fixture f;
    _cleanup_(closep) int fd = -1;
    struct cuda_extent *x = NULL;
    char got[2];

    fixture_init(&f, MIB);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, MIB, &fd, &f.e), 0);
    CU_ASSERT_EQUAL_FATAL(import_copy(&f, fd, MIB, CU_ACCESS_READ, &x), 0);
    CU_ASSERT_EQUAL(cuda_extent_write(x, 7, "x", 2, &f.e), -EPERM);
    CU_ASSERT_EQUAL(cuda_extent_allow_write(x, &f.e), 0);
    CU_ASSERT_EQUAL(cuda_extent_allow_write(x, &f.e), 0);
    CU_ASSERT_EQUAL(cuda_extent_write(x, 7, "x", 2, &f.e), 0);
    CU_ASSERT_EQUAL(cuda_extent_read(x, 7, got, 2, &f.e), 0);
    CU_ASSERT_STRING_EQUAL(got, "x");
    cuda_extent_free(x);
    fixture_deinit(&f);
}

static void test_what_is_refused(void)
{
    struct fixture f;
    _cleanup_(closep) int fd = -1;
    struct cuda_extent *x = NULL;
    int foreign = memfd_create("not-a-gpu", MFD_CLOEXEC), made = -1;

    fixture_init(&f, 8 * MIB);
    CU_ASSERT_EQUAL(cuda_extent_new(f.space, 0, &made, &f.e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_extent_new(f.space, MIB + 1, &made, &f.e), -EINVAL);
    CU_ASSERT_EQUAL(cuda_extent_new(f.space, 65 * MIB, &made, &f.e), -ENOMEM); /* the stand-in has 64 */
    CU_ASSERT_PTR_NOT_NULL(strstr(f.e.text, "CUDA_ERROR_OUT_OF_MEMORY"));
    CU_ASSERT_EQUAL(made, -1);
    CU_ASSERT_EQUAL(cuda_extent_import(f.space, foreign, MIB, CU_ACCESS_READ, &x, &f.e), -EBADMSG);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, MIB, &fd, &f.e), 0);
    CU_ASSERT_EQUAL(import_copy(&f, fd, 2 * MIB, CU_ACCESS_READ, &x), -EBADMSG); /* less than promised */
    CU_ASSERT_EQUAL(import_copy(&f, fd, 100, CU_ACCESS_READ, &x), -EINVAL);
    CU_ASSERT_PTR_NULL(x);
    fixture_deinit(&f);
}

/* Whatever call fails, at any time: an errno, nothing left open, and the next attempt works. */
static void test_every_failing_call(void)
{
    static const char *const calls[] = {"cuDevicePrimaryCtxRetain",
                                        "cuMemAddressReserve",
                                        "cuMemCreate",
                                        "cuMemExportToShareableHandle",
                                        "cuMemImportFromShareableHandle",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuCtxPushCurrent_v2",
                                        "cuMemcpyHtoD_v2"};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (int attempt = 0; attempt < 2; attempt++) { /* the first fails */
            struct fixture f = {0};
            char setting[96];
            _cleanup_(closep) int fd = -1;
            struct cuda_extent *x = NULL;
            int r;

            (void) snprintf(setting, sizeof(setting), "%s:1:%d", calls[i], CU_OUT_OF_MEMORY);
            if (attempt == 0)
                CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
            CU_ASSERT_EQUAL_FATAL(cuda_driver_open(&f.driver, &f.e), 0);
            CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
            CU_ASSERT_EQUAL_FATAL(cuda_device_find(f.driver, NULL, &f.device, &f.e), 0);
            r = cuda_space_new(f.driver, &f.device, MIB, &f.space, &f.e);
            if (r == 0)
                r = cuda_extent_new(f.space, MIB, &fd, &f.e);
            if (r == 0)
                r = import_copy(&f, fd, MIB, CU_ACCESS_READ_WRITE, &x);
            if (r == 0)
                r = cuda_extent_write(x, 0, "x", 1, &f.e);
            CU_ASSERT_EQUAL(r, attempt == 0 ? -ENOMEM : 0);
            cuda_extent_free(x);
            fixture_deinit(&f);
        }
}

/* The child maps the descriptor from the socket and writes; it must not use the driver of its parent. */
static void in_child(int socket)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct fixture f = {0};
    struct cuda_extent *x = NULL;
    int fd = -1, ok = recvmsg(socket, &m, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m);

    if (ok)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    ok = ok && cuda_driver_open(&f.driver, &f.e) == 0 &&
         cuda_device_find(f.driver, NULL, &f.device, &f.e) == 0 &&
         cuda_space_new(f.driver, &f.device, MIB, &f.space, &f.e) == 0 &&
         cuda_extent_import(f.space, fd, MIB, CU_ACCESS_READ_WRITE, &x, &f.e) == 0 &&
         cuda_extent_write(x, 5, "child", 6, &f.e) == 0;
    _exit(ok ? 0 : 1);
}

/* A descriptor is sent over a socket to a process that ends without unmapping: its writes are visible, and
 * its mapping is gone. */
static void test_another_process(void)
{
    struct fixture f;
    _cleanup_(closep) int fd = -1;
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0, got[6];
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    struct cuda_extent *x = NULL;
    int sockets[2], status;
    pid_t child;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    child = fork(); /* before the driver is opened, as the driver demands */
    if (child == 0)
        in_child(sockets[1]);
    fixture_init(&f, MIB);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(f.space, MIB, &fd, &f.e), 0);
    *c =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    CU_ASSERT_EQUAL(sendmsg(sockets[0], &m, 0), 1);
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CU_ASSERT_EQUAL_FATAL(import_copy(&f, fd, MIB, CU_ACCESS_READ, &x), 0);
    CU_ASSERT_EQUAL(cuda_extent_read(x, 5, got, 6, &f.e), 0);
    CU_ASSERT_STRING_EQUAL(got, "child");
    cuda_extent_free(x);
    (void) close(sockets[0]);
    (void) close(sockets[1]);
    fixture_deinit(&f);
}

const char test_suite[] = "gpu extents";
const struct test_case test_cases[] = {
    TEST(test_two_mappings_share_bytes), TEST(test_a_descriptor_keeps_memory),
    TEST(test_addresses_are_reused),     TEST(test_writing_is_asked_for),
    TEST(test_what_is_refused),          TEST(test_every_failing_call),
    TEST(test_another_process),          TEST_END,
};
