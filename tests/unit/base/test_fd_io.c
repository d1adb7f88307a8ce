/* Whole reads and writes: ranges, files that end early, descriptors that fail, pipes with short writes. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd_io.h"
#include "tests/lib/short_io.h"
#include "tests/lib/test.h"

#define PIPE_BYTES (1 << 20) /* more than a pipe holds: write(2) returns short counts */

static void test_range(void)
{
    _cleanup_(closep) int fd = memfd_create("fd_io", MFD_CLOEXEC);
    char got[4] = {0};

    CU_ASSERT_EQUAL(fd_pwrite_all(fd, "abcdef", 6, 2), 0);
    CU_ASSERT_EQUAL(fd_pread_all(fd, got, 4, 3), 0);
    CU_ASSERT_EQUAL(memcmp(got, "bcde", 4), 0);
    CU_ASSERT_EQUAL(fd_pread_all(fd, got, 0, 99), 0);
}

static void test_short_file(void)
{
    _cleanup_(closep) int fd = memfd_create("fd_io", MFD_CLOEXEC);
    char got[4];

    CU_ASSERT_EQUAL(fd_pwrite_all(fd, "abc", 3, 0), 0);
    CU_ASSERT_EQUAL(fd_pread_all(fd, got, 4, 0), -ENODATA);
}

static void test_refused(void)
{
    char byte = 0;

    CU_ASSERT_EQUAL(fd_pread_all(-1, &byte, 1, 0), -EBADF);
    CU_ASSERT_EQUAL(fd_pwrite_all(-1, &byte, 1, 0), -EBADF);
    CU_ASSERT_EQUAL(fd_write_all(-1, &byte, 1), -EBADF);
}

static void *drain_pipe(void *arg)
{
    static char sink[777];
    size_t *n = arg;
    int fd = (int) n[0];

    n[1] = 0;
    for (ssize_t got = read(fd, sink, sizeof(sink)); got > 0; got = read(fd, sink, sizeof(sink)))
        n[1] += (size_t) got;
    return NULL;
}

static void test_pipe(void)
{
    static char bytes[PIPE_BYTES];
    size_t reader_state[2];
    pthread_t reader;
    int fds[2];

    CU_ASSERT_EQUAL_FATAL(pipe(fds), 0);
    reader_state[0] = (size_t) fds[0];
    CU_ASSERT_EQUAL_FATAL(pthread_create(&reader, NULL, drain_pipe, reader_state), 0);
    CU_ASSERT_EQUAL(fd_write_all(fds[1], bytes, sizeof(bytes)), 0);
    (void) close(fds[1]);
    (void) pthread_join(reader, NULL);
    CU_ASSERT_EQUAL(reader_state[1], PIPE_BYTES);
    (void) close(fds[0]);
}

/* Pieces of 3 bytes between interruptions are one transfer, of exactly the bytes that were asked for. */
static void test_pieces(void)
{
    _cleanup_(closep) int fd = memfd_create("fd_io", MFD_CLOEXEC);
    static const char text[] = "0123456789abcdef";
    char got[20];

    short_io = (struct short_io){.bytes_max = 3};
    CU_ASSERT_EQUAL(fd_pwrite_all(fd, text, 16, 2), 0);
    CU_ASSERT_EQUAL(short_io.n_calls, 2 * 6);
    CU_ASSERT_EQUAL(lseek(fd, 0, SEEK_END), 2 + 16);
    CU_ASSERT_EQUAL(fd_write_all(fd, "xyzuvwt", 7), 0);
    CU_ASSERT_EQUAL(lseek(fd, 0, SEEK_END), 2 + 16 + 7);
    memset(got, '#', sizeof(got));
    CU_ASSERT_EQUAL(fd_pread_all(fd, got, 11, 4), 0);
    CU_ASSERT_EQUAL(memcmp(got, "23456789abc#########", sizeof(got)), 0);
    CU_ASSERT_EQUAL(fd_pread_all(fd, got, 7, 18), 0);
    CU_ASSERT_EQUAL(memcmp(got, "xyzuvwt9abc#", 12), 0);
    short_io = (struct short_io){0};
}

/* An error after some pieces ends the transfer with its errno. */
static void test_error_between_pieces(void)
{
    _cleanup_(closep) int fd = memfd_create("fd_io", MFD_CLOEXEC);
    char bytes[20] = {0};

    for (unsigned at = 1; at < 6; at++) {
        short_io = (struct short_io){.bytes_max = 3, .fail_at = at, .fail_errno = EIO};
        CU_ASSERT_EQUAL(fd_pwrite_all(fd, bytes, 20, 0), -EIO);
        short_io.n_calls = 0;
        CU_ASSERT_EQUAL(fd_write_all(fd, bytes, 20), -EIO);
        short_io = (struct short_io){0};
        CU_ASSERT_EQUAL(fd_pwrite_all(fd, bytes, 20, 0), 0);
        short_io = (struct short_io){.bytes_max = 3, .fail_at = at, .fail_errno = EIO};
        CU_ASSERT_EQUAL(fd_pread_all(fd, bytes, 20, 0), -EIO);
        CU_ASSERT_EQUAL(short_io.n_calls, at);
    }
    short_io = (struct short_io){0};
}

const struct test_case test_cases[] = {
    TEST(test_range),  TEST(test_short_file),           TEST(test_refused), TEST(test_pipe),
    TEST(test_pieces), TEST(test_error_between_pieces), TEST_END,
};
const char test_suite[] = "fd_io";
