/* Atomic writes: in pieces and at once, over existing files, without leftover
 * files; and reads of whole files. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/short_io.h"
#include "tests/lib/test.h"

static char folder[64], path[96];

static void enter(void)
{
    (void) snprintf(folder, sizeof(folder), "/tmp/kvc-test-atomic-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/file", folder);
}

static size_t count_files(void)
{
    DIR *d = opendir(folder);
    size_t n = 0;

    assert(d);
    for (struct dirent *f = readdir(d); f; f = readdir(d))
        n += f->d_name[0] != '.';
    (void) closedir(d);
    return n;
}

static void leave(void)
{
    (void) unlink(path);
    CU_ASSERT_EQUAL(rmdir(folder), 0); /* the folder holds no other file */
}

static void expect(const char *want)
{
    _cleanup_(freep) void *data = NULL;
    struct errmsg e = {""};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(atomic_file_read(path, 1000, &data, &n, &e), 0);
    CU_ASSERT_EQUAL(n, strlen(want));
    CU_ASSERT_EQUAL(memcmp(data, want, n), 0);
    CU_ASSERT_EQUAL(count_files(), 1);
}

static void test_write_and_replace(void)
{
    struct errmsg e = {""};
    mode_t mask = umask(027);
    struct stat st;

    enter();
    CU_ASSERT_EQUAL(atomic_file_write(path, "one", 3, &e), 0);
    expect("one");
    CU_ASSERT_EQUAL(stat(path, &st), 0);
    CU_ASSERT_EQUAL(st.st_mode & 0777, 0640); /* mode 0666 less the umask */
    CU_ASSERT_EQUAL(atomic_file_write(path, "longer", 6, &e), 0);
    expect("longer");
    CU_ASSERT_EQUAL(atomic_file_write(path, NULL, 0, &e), 0);
    expect("");
    (void) umask(mask);
    leave();
}

static void test_pieces(void)
{
    struct atomic_file f = {.fd = -1};
    struct errmsg e = {""};

    enter();
    CU_ASSERT_EQUAL_FATAL(atomic_file_start(path, &f, &e), 0);
    atomic_file_put(&f, "ab", 2);
    atomic_file_put(&f, "", 0);
    atomic_file_put(&f, "c", 1);
    CU_ASSERT_EQUAL(count_files(), 0); /* no name yet, on all file systems that Debian installs on */
    CU_ASSERT_EQUAL(atomic_file_commit(&f, &e), 0);
    atomic_file_deinit(&f);
    expect("abc");
    CU_ASSERT_EQUAL_FATAL(atomic_file_start(path, &f, &e), 0);
    atomic_file_put(&f, "lost", 4);
    atomic_file_deinit(&f); /* discarded */
    atomic_file_deinit(&f);
    expect("abc");
    leave();
}

static void test_refusals(void)
{
    struct errmsg e = {""};

    enter();
    CU_ASSERT_EQUAL(atomic_file_write("/nonexistent/x", "x", 1, &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "/nonexistent/x"));
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    CU_ASSERT_EQUAL(atomic_file_write(path, "x", 1, &e), -EISDIR);
    CU_ASSERT_EQUAL(count_files(), 1);
    CU_ASSERT_EQUAL(rmdir(path), 0);
    CU_ASSERT_EQUAL(atomic_file_write("/dev/full/x", "x", 1, &e), -ENOTDIR);
    leave();
}

/* Devices, links and folders are not replaced: `-o /dev/null` of root would break the whole machine. */
static void test_not_replaced(void)
{
    struct errmsg e = {""};
    struct stat st;

    enter();
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    CU_ASSERT_EQUAL(atomic_file_check(path, &e), -EINVAL);
    CU_ASSERT_EQUAL(atomic_file_write(path, "x", 1, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
    CU_ASSERT_EQUAL(lstat(path, &st), 0);
    CU_ASSERT_TRUE(S_ISFIFO(st.st_mode));
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(symlink("nowhere", path), 0);
    CU_ASSERT_EQUAL(atomic_file_check(path, &e), -EINVAL);
    CU_ASSERT_EQUAL(atomic_file_write(path, "x", 1, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "symbolic link"));
    CU_ASSERT_EQUAL(count_files(), 1);
    leave();
}

static int read_refused(size_t max_bytes, const char *sentence)
{
    void *data = folder;
    size_t n = 77;
    struct errmsg e = {""};
    int r = atomic_file_read(path, max_bytes, &data, &n, &e);

    CU_ASSERT(data == folder && n == 77);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, sentence));
    return r;
}

/* Each reason not to read a file has its own sentence; a fifo does not make the reader wait. */
static void test_read_refusals(void)
{
    void *data = NULL;
    struct errmsg e = {""};
    size_t n = 77;

    enter();
    CU_ASSERT_EQUAL(read_refused(10, strerror(ENOENT)), -ENOENT);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    CU_ASSERT_EQUAL(read_refused(10, strerror(EISDIR)), -EISDIR);
    CU_ASSERT_EQUAL(rmdir(path), 0);
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    CU_ASSERT_EQUAL(read_refused(10, "not a regular file"), -EINVAL);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(atomic_file_write(path, "twelve bytes", 12, &e), 0);
    CU_ASSERT_EQUAL(read_refused(11, "larger than the 11 bytes"), -EFBIG);
    CU_ASSERT_EQUAL(atomic_file_read(path, 12, &data, &n, &e), 0);
    CU_ASSERT_EQUAL(n, 12);
    CU_ASSERT_EQUAL(memcmp(data, "twelve bytes", 12), 0);
    free(data);
    leave();
}

static void test_check(void)
{
    struct errmsg e = {""};

    enter();
    CU_ASSERT_EQUAL(atomic_file_check(path, &e), 0);
    CU_ASSERT_EQUAL(count_files(), 0);
    CU_ASSERT_EQUAL(atomic_file_write(path, "old", 3, &e), 0);
    CU_ASSERT_EQUAL(atomic_file_check(path, &e), 0);
    expect("old");
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    CU_ASSERT_EQUAL(atomic_file_check(path, &e), -EISDIR);
    CU_ASSERT_EQUAL(rmdir(path), 0);
    CU_ASSERT_EQUAL(atomic_file_check("/nonexistent/x", &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "/nonexistent/x"));
    CU_ASSERT_EQUAL(atomic_file_check("/dev/full/x", &e), -ENOTDIR);
    CU_ASSERT_EQUAL(atomic_file_check("", &e), -ENOENT);
    leave();
}

/* Reads of a few bytes, interrupted, give the whole file; an error between them gives nothing. */
static void test_read_in_pieces(void)
{
    void *data = NULL;
    struct errmsg e = {""};
    size_t n = 77;

    enter();
    CU_ASSERT_EQUAL(atomic_file_write(path, "twelve bytes", 12, &e), 0);
    short_io = (struct short_io){.bytes_max = 5};
    CU_ASSERT_EQUAL(atomic_file_read(path, 12, &data, &n, &e), 0);
    CU_ASSERT(n == 12 && short_io.n_calls == 6 && memcmp(data, "twelve bytes", 12) == 0);
    free(data);
    short_io = (struct short_io){.bytes_max = 5, .fail_at = 4, .fail_errno = EIO};
    CU_ASSERT_EQUAL(read_refused(12, strerror(EIO)), -EIO);
    short_io = (struct short_io){0};
    leave();
}

/* A folder takes the name before the file gets it: the file ends without any name. */
static void test_name_is_taken(void)
{
    struct atomic_file f = {.fd = -1};
    struct errmsg e = {""};

    enter();
    CU_ASSERT_EQUAL_FATAL(atomic_file_start(path, &f, &e), 0);
    atomic_file_put(&f, "lost", 4);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    CU_ASSERT_EQUAL(atomic_file_commit(&f, &e), -EISDIR);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
    CU_ASSERT_EQUAL(count_files(), 2); /* its temporary name */
    atomic_file_deinit(&f);
    CU_ASSERT_EQUAL(count_files(), 1);
    CU_ASSERT_EQUAL(rmdir(path), 0);
    leave();
}

/* A writer that is killed before commit leaves the old file and no other file. */
static void test_killed(void)
{
    struct errmsg e = {""};
    int status = 0;
    pid_t child;

    enter();
    CU_ASSERT_EQUAL(atomic_file_write(path, "old", 3, &e), 0);
    child = fork();
    if (child == 0) {
        struct atomic_file f = {.fd = -1};

        if (atomic_file_start(path, &f, &e) < 0)
            _exit(1);
        for (int i = 0; i < 100000; i++)
            atomic_file_put(&f, "new", 3);
        (void) raise(SIGKILL);
    }
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFSIGNALED(status));
    expect("old");
    leave();
}

const struct test_case test_cases[] = {
    TEST(test_write_and_replace), TEST(test_pieces), TEST(test_refusals), TEST(test_not_replaced),
    TEST(test_read_refusals),     TEST(test_check),  TEST(test_killed),   TEST(test_read_in_pieces),
    TEST(test_name_is_taken),     TEST_END,
};
const char test_suite[] = "atomic_file";
