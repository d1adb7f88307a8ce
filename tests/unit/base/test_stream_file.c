/* Tests of base/stream_file.c: files, pipes, standard input and output; limits; the byte order mark. */
#include "base/stream_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "stream_file";

/* A pipe that has @text and no writer. */
static int pipe_of(const char *text)
{
    int fds[2];

    CU_ASSERT_EQUAL_FATAL(pipe2(fds, O_CLOEXEC), 0);
    CU_ASSERT_EQUAL_FATAL(write(fds[1], text, strlen(text)), (ssize_t) strlen(text));
    (void) close(fds[1]);
    return fds[0];
}

static void check_read(const char *path, size_t max, int want, const char *text)
{
    struct errmsg e = {""};
    void *data = NULL;
    size_t n = 77;
    int r = stream_file_read(path, max, &data, &n, &e);

    CU_ASSERT_EQUAL(r, want);
    CU_ASSERT_EQUAL(r == 0, e.text[0] == '\0');
    if (r == 0) {
        CU_ASSERT(n == strlen(text) && memcmp(data, text, n) == 0);
    } else {
        CU_ASSERT(!data && n == 77);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, text));
    }
    free(data);
}

static void check_file(const char *content, size_t max, int want, const char *text)
{
    char path[] = "/tmp/kvc-stream-XXXXXX";
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0 && write(fd, content, strlen(content)) == (ssize_t) strlen(content));
    (void) close(fd);
    check_read(path, max, want, text);
    (void) unlink(path);
}

static void test_files(void)
{
    check_file("hello\n", 6, 0, "hello\n");
    check_file("hello\n", 5, -EFBIG, "5 bytes");
    check_file("", 0, 0, "");
    check_read("/", 5, -EISDIR, "/ is a folder");
    check_read("/nowhere/x", 5, -ENOENT, "cannot read /nowhere/x");
    check_read("/dev/null", 5, 0, "");
    check_read("/dev/zero", 1 << 20, -EFBIG, "1048576 bytes");
}

static void test_byte_order_mark(void)
{
    check_file("\xef\xbb\xbfhello", 100, 0, "hello");
    check_file("\xef\xbb\xbf", 100, 0, "");
    check_file("\xef\xbbhello", 100, 0, "\xef\xbbhello");
    check_file("hello\xef\xbb\xbf", 100, 0, "hello\xef\xbb\xbf"); /* only at the beginning */
    check_file("\xef\xbb\xbf\xef\xbb\xbfx", 100, 0, "\xef\xbb\xbfx");
}

static void test_pipes(void)
{
    char path[32];
    int fd = pipe_of("from a pipe");

    (void) snprintf(path, sizeof(path), "/dev/fd/%d", fd); /* as a shell's <(command) */
    check_read(path, 100, 0, "from a pipe");
    (void) close(fd);
    fd = pipe_of("12345678");
    (void) snprintf(path, sizeof(path), "/dev/fd/%d", fd);
    check_read(path, 7, -EFBIG, "such a stream");
    (void) close(fd);
}

/* Reads @path with standard input from @fd, which is closed. */
static void check_input(const char *path, int fd, int want, const char *text)
{
    int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10);

    if (fd >= 0) {
        CU_ASSERT_EQUAL_FATAL(dup2(fd, STDIN_FILENO), STDIN_FILENO);
        (void) close(fd);
    } else {
        (void) close(STDIN_FILENO);
    }
    check_read(path, 100, want, text);
    if (saved >= 0) {
        (void) dup2(saved, STDIN_FILENO);
        (void) close(saved);
    }
}

static void test_standard_input(void)
{
    int fds[2];

    check_input("-", pipe_of("hello"), 0, "hello");
    check_input("/dev/stdin", pipe_of("hello"), 0, "hello");
    check_input("-", open("/", O_RDONLY | O_CLOEXEC), -EISDIR, "standard input is a folder");
    check_input("-", -1, -EBADF, "cannot read standard input");
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    CU_ASSERT_EQUAL(write(fds[1], "hello", 5), 5);
    (void) close(fds[1]);
    check_input("/dev/stdin", fds[0], 0, "hello");
}

static void test_names(void)
{
    CU_ASSERT(stream_file_is_standard("-") && stream_file_is_standard("/dev/stdout"));
    CU_ASSERT(!stream_file_is_standard("./-") && !stream_file_is_standard("") &&
              !stream_file_is_standard("--"));
    CU_ASSERT_STRING_EQUAL(stream_file_name("-"), "standard input");
    CU_ASSERT_STRING_EQUAL(stream_file_name("a"), "a");
}

static void test_output(void)
{
    char path[] = "/tmp/kvc-stream-XXXXXX";
    int saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10), fd = mkstemp(path), r;
    struct errmsg e = {""};

    CU_ASSERT_FATAL(fd >= 0 && saved >= 0);
    (void) fflush(stdout);
    (void) dup2(fd, STDOUT_FILENO);
    (void) close(fd);
    r = stream_file_write("-", "page", 4, &e);
    (void) dup2(saved, STDOUT_FILENO);
    (void) close(saved);
    CU_ASSERT_EQUAL(r, 0);
    check_read(path, 100, 0, "page");
    CU_ASSERT_EQUAL(stream_file_write(path, "other", 5, &e), 0);
    check_read(path, 100, 0, "other");
    (void) unlink(path);
    CU_ASSERT_NOT_EQUAL(access("-", F_OK), 0);
}

const struct test_case test_cases[] = {
    TEST(test_files), TEST(test_byte_order_mark), TEST(test_pipes), TEST(test_standard_input),
    TEST(test_names), TEST(test_output),          TEST_END,
};
