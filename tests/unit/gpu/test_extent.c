/* gpu/extent.c: what an importer can do with an extent, and that a failure leaves nothing open. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/device.h"
#include "tests/lib/test.h"

enum { BYTES = 4 * 4096, NOBODY = 65534 };

static unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert(dir);
    while (readdir(dir))
        n++;
    (void) closedir(dir);
    return n;
}

static struct extent *new_extent(enum extent_access access)
{
    struct extent *x = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL_FATAL(extent_new("kvc-test", BYTES, access, &x, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    return x;
}

static void test_owner_and_importer_share_bytes(void)
{
    _cleanup_(extent_freep) struct extent *owner = new_extent(EXTENT_READ), *importer = NULL;
    int fd = fcntl(extent_fd(owner), F_DUPFD_CLOEXEC, 0);
    char *p = extent_data(owner);

    CU_ASSERT_EQUAL(extent_bytes(owner), BYTES);
    CU_ASSERT_EQUAL_FATAL(extent_import(fd, BYTES, EXTENT_READ, &importer, NULL), 0);
    CU_ASSERT_EQUAL(extent_fd(importer), fd);
    CU_ASSERT_EQUAL(p[BYTES - 1], 0);
    p[BYTES - 1] = 42;
    CU_ASSERT_EQUAL(((const char *) extent_data(importer))[BYTES - 1], 42);
}

static void test_writable_importer(void)
{
    _cleanup_(extent_freep) struct extent *owner = new_extent(EXTENT_READ_WRITE), *importer = NULL;
    int fd = fcntl(extent_fd(owner), F_DUPFD_CLOEXEC, 0);

    CU_ASSERT_EQUAL_FATAL(extent_import(fd, BYTES, EXTENT_READ_WRITE, &importer, NULL), 0);
    ((char *) extent_data(importer))[7] = 43;
    CU_ASSERT_EQUAL(((const char *) extent_data(owner))[7], 43);
}

static void test_properties(void)
{
    _cleanup_(extent_freep) struct extent *pages = new_extent(EXTENT_READ),
                                          *arena = new_extent(EXTENT_READ_WRITE);
    struct stat st;

    CU_ASSERT_EQUAL(fcntl(extent_fd(pages), F_GETFL) & O_ACCMODE, O_RDONLY);
    CU_ASSERT_EQUAL(fcntl(extent_fd(arena), F_GETFL) & O_ACCMODE, O_RDWR);
    CU_ASSERT_EQUAL(fcntl(extent_fd(pages), F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fcntl(extent_fd(arena), F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fstat(extent_fd(pages), &st), 0);
    CU_ASSERT_EQUAL(st.st_mode & 07777, 0400);
    CU_ASSERT_EQUAL(st.st_blocks * 512, BYTES); /* allocated, not only reserved */
    CU_ASSERT_EQUAL(fstat(extent_fd(arena), &st), 0);
    CU_ASSERT_EQUAL(st.st_mode & 07777, 0600);
}

/* Neither descriptor can change the object under a mapping: the read-only one cannot write, the writable
 * one cannot resize. */
static void test_sealed(void)
{
    _cleanup_(extent_freep) struct extent *pages = new_extent(EXTENT_READ),
                                          *arena = new_extent(EXTENT_READ_WRITE);
    const int expected = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int fd = extent_fd(pages);

    CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & expected, expected);
    CU_ASSERT_EQUAL(ftruncate(fd, 0), -1);
    CU_ASSERT_EQUAL(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    CU_ASSERT_EQUAL(errno, EBADF);
    CU_ASSERT_EQUAL(pwrite(fd, "x", 1, 0), -1);
    CU_ASSERT_PTR_EQUAL(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    CU_ASSERT_EQUAL(errno, EACCES);

    fd = extent_fd(arena);
    CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & expected, expected);
    CU_ASSERT_EQUAL(ftruncate(fd, 0), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
    CU_ASSERT_EQUAL(ftruncate(fd, BYTES + 4096), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
    CU_ASSERT_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    CU_ASSERT_EQUAL(errno, EPERM);
}

static blkcnt_t blocks_of(const struct extent *x)
{
    struct stat st;

    assert(fstat(extent_fd(x), &st) == 0);
    return st.st_blocks;
}

/* A sparse object has memory where an importer allocated it or wrote, until it is emptied. */
static void test_unmapped(void)
{
    _cleanup_(extent_freep) struct extent *owner = NULL, *importer = NULL;
    const int expected = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    char bytes[2] = "x";
    char *p;

    CU_ASSERT_EQUAL_FATAL(extent_new_unmapped("kvc-test", BYTES, &owner, NULL), 0);
    CU_ASSERT_EQUAL(extent_bytes(owner), BYTES);
    CU_ASSERT_PTR_NULL(extent_data(owner));
    CU_ASSERT_EQUAL(fcntl(extent_fd(owner), F_GET_SEALS) & expected, expected);
    CU_ASSERT_EQUAL(pread(extent_fd(owner), bytes, 2, 4095), 2);
    CU_ASSERT(bytes[0] == 0 && bytes[1] == 0);
    CU_ASSERT_EQUAL(blocks_of(owner), 0);

    CU_ASSERT_EQUAL_FATAL(
        extent_import(fcntl(extent_fd(owner), F_DUPFD_CLOEXEC, 0), BYTES, EXTENT_READ_WRITE, &importer, NULL),
        0);
    CU_ASSERT_EQUAL(extent_allocate(extent_fd(importer), 4096, 8192), 0);
    CU_ASSERT_EQUAL(blocks_of(owner), 8192 / 512);
    p = extent_data(importer);
    p[4096] = 42;
    p[3 * 4096] = 43;
    CU_ASSERT_EQUAL(blocks_of(owner), 3 * 4096 / 512);
    CU_ASSERT_EQUAL(extent_allocate(extent_fd(importer), 0, BYTES), 0);
    CU_ASSERT(p[4096] == 42 && p[3 * 4096] == 43);

    CU_ASSERT_EQUAL(extent_empty(owner), 0);
    CU_ASSERT_EQUAL(blocks_of(owner), 0);
    CU_ASSERT(p[4096] == 0 && p[3 * 4096] == 0);
}

static void test_read_mapping_stays_read_only(void)
{
    _cleanup_(extent_freep) struct extent *owner = new_extent(EXTENT_READ), *importer = NULL;
    int fd = fcntl(extent_fd(owner), F_DUPFD_CLOEXEC, 0);

    CU_ASSERT_EQUAL_FATAL(extent_import(fd, BYTES, EXTENT_READ, &importer, NULL), 0);
    CU_ASSERT_EQUAL(mprotect(extent_data(importer), BYTES, PROT_READ | PROT_WRITE), -1);
    CU_ASSERT_EQUAL(errno, EACCES);
}

/* Runs as another user that holds the descriptor. 0: the Linux kernel refused to open the object anew,
 * read-only and writable. */
static int open_as_nobody(int fd)
{
    char path[64];

    if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
        return 2;
    /* Changing uid made this process undumpable, which would refuse access
     * to /proc/self/fd for another reason. */
    if (prctl(PR_SET_DUMPABLE, 1) < 0)
        return 3;
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (open(path, O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES)
        return 4;
    return open(path, O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES ? 5 : 0;
}

static void test_other_user(void)
{
    _cleanup_(extent_freep) struct extent *x = NULL;
    int status;
    pid_t pid;

    if (geteuid() != 0) {
        test_skip("changing the user needs root");
        return;
    }
    x = new_extent(EXTENT_READ);
    pid = fork();
    if (pid == 0)
        _exit(open_as_nobody(extent_fd(x)));
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
}

/* A child must not inherit the mapping: probing its address there returns ENOMEM. */
static void test_not_inherited(void)
{
    _cleanup_(extent_freep) struct extent *owner = new_extent(EXTENT_READ), *importer = NULL;
    int fd = fcntl(extent_fd(owner), F_DUPFD_CLOEXEC, 0), status;
    unsigned char present[4];
    pid_t pid;

    CU_ASSERT_EQUAL_FATAL(extent_import(fd, BYTES, EXTENT_READ, &importer, NULL), 0);
    pid = fork();
    if (pid == 0) {
        int gone = mincore(extent_data(owner), BYTES, present) < 0 && errno == ENOMEM &&
                   mincore(extent_data(importer), BYTES, present) < 0 && errno == ENOMEM;

        _exit(gone ? 0 : 1);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- refusals: each closes the descriptor and leaves the output unchanged ---- */

static void expect_refused(int fd, size_t bytes, enum extent_access access)
{
    struct extent *x = (void *) &x; /* a value that no call would store */
    struct errmsg e = {0};
    int r = extent_import(fd, bytes, access, &x, &e);

    CU_ASSERT_EQUAL(r, -EBADMSG);
    CU_ASSERT_PTR_EQUAL(x, (void *) &x);
    CU_ASSERT_NOT_EQUAL(strlen(e.text), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), -1);
}

static void test_wrong_size(void)
{
    _cleanup_(extent_freep) struct extent *owner = new_extent(EXTENT_READ);
    unsigned before = count_fds();

    expect_refused(dup(extent_fd(owner)), BYTES - 4096, EXTENT_READ);
    expect_refused(dup(extent_fd(owner)), BYTES + 4096, EXTENT_READ);
    expect_refused(dup(extent_fd(owner)), BYTES - 1, EXTENT_READ);
    expect_refused(dup(extent_fd(owner)), 0, EXTENT_READ);
    expect_refused(dup(extent_fd(owner)), SIZE_MAX, EXTENT_READ);
    CU_ASSERT_EQUAL(count_fds(), before);
}

static void test_read_only_where_writable_was_promised(void)
{
    _cleanup_(extent_freep) struct extent *owner = new_extent(EXTENT_READ);

    expect_refused(dup(extent_fd(owner)), BYTES, EXTENT_READ_WRITE);
}

static void test_unsealed(void)
{
    static const int seals[] = {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE | F_SEAL_SEAL};

    for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
        int fd = memfd_create("kvc-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        CU_ASSERT_EQUAL_FATAL(ftruncate(fd, BYTES), 0);
        CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, seals[i]), 0);
        expect_refused(fd, BYTES, EXTENT_READ);
    }
}

/* A later process takes over an object with all seals and the mode of its kind, and no other. */
static void test_adoption(void)
{
    enum { NEEDED = F_SEAL_SHRINK | F_SEAL_GROW };
    static const struct {
        int seals;
        mode_t mode;
        enum extent_access access;
        int err;
    } cases[] = {
        {NEEDED | F_SEAL_SEAL, 0400, EXTENT_READ, 0},
        {NEEDED | F_SEAL_SEAL, 0600, EXTENT_READ_WRITE, 0},
        {NEEDED, 0400, EXTENT_READ, -EBADMSG}, /* someone may still seal it against writing */
        {NEEDED, 0600, EXTENT_READ_WRITE, -EBADMSG},
        {NEEDED | F_SEAL_SEAL, 0600, EXTENT_READ, -EBADMSG}, /* importers could write */
        {NEEDED | F_SEAL_SEAL, 0400, EXTENT_READ_WRITE, -EBADMSG},
        {NEEDED | F_SEAL_SEAL, 0644, EXTENT_READ_WRITE, -EBADMSG},
        {F_SEAL_GROW | F_SEAL_SEAL, 0400, EXTENT_READ, -EBADMSG},
        {F_SEAL_SHRINK | F_SEAL_SEAL, 0400, EXTENT_READ, -EBADMSG},
    };
    unsigned before = count_fds();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int fd = memfd_create("kvc-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        struct extent *x = NULL;
        struct errmsg e = {0};

        CU_ASSERT_EQUAL_FATAL(ftruncate(fd, BYTES), 0);
        CU_ASSERT_EQUAL(pwrite(fd, "kept", 4, 100), 4);
        CU_ASSERT_EQUAL_FATAL(fchmod(fd, cases[i].mode), 0);
        CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, cases[i].seals), 0);
        CU_ASSERT_EQUAL(extent_adopt(fd, BYTES, cases[i].access, &x, &e), cases[i].err);
        CU_ASSERT(cases[i].err ? !x && strlen(e.text) > 0
                               : x && memcmp((const char *) extent_data(x) + 100, "kept", 4) == 0);
        (void) extent_free(x);
    }
    CU_ASSERT_EQUAL(count_fds(), before);
}

static void test_not_a_memfd(void)
{
    int pipe_fds[2];
    FILE *file = tmpfile();
    int fd;

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fd = dup(fileno(file));
    CU_ASSERT_EQUAL_FATAL(ftruncate(fd, BYTES), 0);
    expect_refused(fd, BYTES, EXTENT_READ);
    (void) fclose(file);
    CU_ASSERT_EQUAL_FATAL(pipe2(pipe_fds, O_CLOEXEC), 0);
    expect_refused(pipe_fds[0], BYTES, EXTENT_READ);
    (void) close(pipe_fds[1]);
    expect_refused(open("/dev/zero", O_RDWR | O_CLOEXEC), BYTES, EXTENT_READ);
}

static void expect_not_made(const char *name, size_t bytes, int expected)
{
    struct extent *x = (void *) &x;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(extent_new(name, bytes, EXTENT_READ, &x, &e), expected);
    CU_ASSERT_PTR_EQUAL(x, (void *) &x);
    CU_ASSERT_NOT_EQUAL(strlen(e.text), 0);
}

static void test_bad_requests(void)
{
    char name[202];
    unsigned before = count_fds();

    memset(name, 'n', sizeof(name));
    name[201] = '\0';
    expect_not_made(name, BYTES, -EINVAL);
    expect_not_made("kvc-test", 0, -EINVAL);
    expect_not_made("kvc-test", BYTES + 1, -EINVAL);
    expect_not_made("kvc-test", (size_t) 1 << 63, -EINVAL);
    CU_ASSERT_EQUAL(count_fds(), before);
}

/* Every limit of descriptors, from none left to one too few: the same error, and nothing left open. */
static void test_out_of_descriptors(void)
{
    struct rlimit saved, low;
    unsigned before = count_fds();
    int next = dup(0); /* the lowest free number */

    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &saved), 0);
    (void) close(next);
    for (rlim_t spare = 0; spare < 2; spare++) { /* the memfd, then its read-only descriptor */
        low = (struct rlimit){(rlim_t) next + spare, saved.rlim_max};
        CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &low), 0);
        expect_not_made("kvc-test", BYTES, -EMFILE);
        CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &saved), 0);
    }
    CU_ASSERT_EQUAL(count_fds(), before);
}

static void test_freed_completely(void)
{
    unsigned before = count_fds();
    struct extent *x = new_extent(EXTENT_READ), *y = new_extent(EXTENT_READ_WRITE);

    CU_ASSERT_EQUAL(count_fds(), before + 2);
    CU_ASSERT_PTR_NULL(extent_free(x));
    CU_ASSERT_PTR_NULL(extent_free(y));
    CU_ASSERT_PTR_NULL(extent_free(NULL));
    CU_ASSERT_EQUAL(count_fds(), before);
}

const char test_suite[] = "extent";
const struct test_case test_cases[] = {
    TEST(test_owner_and_importer_share_bytes),
    TEST(test_writable_importer),
    TEST(test_properties),
    TEST(test_sealed),
    TEST(test_unmapped),
    TEST(test_read_mapping_stays_read_only),
    TEST(test_other_user),
    TEST(test_not_inherited),
    TEST(test_wrong_size),
    TEST(test_read_only_where_writable_was_promised),
    TEST(test_unsealed),
    TEST(test_not_a_memfd),
    TEST(test_bad_requests),
    TEST(test_out_of_descriptors),
    TEST(test_freed_completely),
    TEST(test_adoption),
    TEST_END,
};
