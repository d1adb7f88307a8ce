/*
 * Kills a process with a disk tier before each call that changes its files, and in the middle of each
 * write. The next process finds every page whose write was reported, and no wrong one.
 *
 * The program is linked with --wrap for these calls.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/loop/ev.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/disk_fixture.h"
#include "tests/unit/daemon/faulty_engine.h"

const char test_suite[] = "disk_kill";

ssize_t __real_pwrite64(int fd, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *from, size_t bytes, off_t offset);
int __real_fallocate64(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t bytes);
int __real_ftruncate64(int fd, off_t bytes);
int __wrap_ftruncate64(int fd, off_t bytes);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);

enum { KILLED = 99, TENANTS = 2, NUMBERS = 64, ALIGN = 4096 };

enum page_state {
    PAGE_ABSENT = 0,
    PAGE_MAYBE = 1, /* it is being written, or its segment may be discarded */
    PAGE_PRESENT = 2,
};

static struct disk_fixture f;
static unsigned n_calls, kill_at; /* 0: never */
static bool in_the_middle;
static uint8_t (*pages)[NUMBERS]; /* [TENANTS] enum page_state, shared with the killed process */

/* ---- calls ---- */

static bool is_last_call(void)
{
    return __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED) == kill_at;
}

ssize_t __wrap_pwrite64(int fd, const void *from, size_t bytes, off_t offset)
{
    if (is_last_call()) {
        if (in_the_middle)
            (void) __real_pwrite64(
                fd, from, bytes % ALIGN == 0 ? bytes / 2 & ~(size_t) (ALIGN - 1) : bytes / 2, offset);
        _exit(KILLED);
    }
    return __real_pwrite64(fd, from, bytes, offset);
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t bytes)
{
    if (is_last_call())
        _exit(KILLED);
    return __real_fallocate64(fd, mode, offset, bytes);
}

int __wrap_ftruncate64(int fd, off_t bytes)
{
    if (is_last_call())
        _exit(KILLED);
    return __real_ftruncate64(fd, bytes);
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    if (is_last_call())
        _exit(KILLED);
    return __real_renameat(from_dir, from, to_dir, to);
}

int __wrap_fdatasync(int fd)
{
    if (is_last_call())
        _exit(KILLED);
    return __real_fdatasync(fd);
}

/* ---- what is killed ---- */

static void set_all(unsigned tenant, enum page_state from, enum page_state to)
{
    for (unsigned i = 0; i < NUMBERS; i++)
        if (pages[tenant][i] == from)
            pages[tenant][i] = (uint8_t) to;
}

static void write_page(unsigned tenant, unsigned number)
{
    pages[tenant][number] = PAGE_MAYBE;
    if (disk_fixture_write(&f, tenant, number) != 0)
        _exit(1);
    pages[tenant][number] = PAGE_PRESENT;
}

static void request(enum tier_kind kind, unsigned tenant, unsigned number)
{
    struct fixture_page p;

    if (disk_fixture_begin(&f, &p, kind, tenant, number) < 0)
        _exit(2);
    disk_fixture_finish(&p);
    if (p.request.result != 0)
        _exit(3);
}

/* Two tenants, a page that does not open, a tenant that drops its pages, and a segment's second life. */
static void live(void)
{
    disk_fixture_open(&f);
    if (disk_fixture_status(&f).state != TIER_READY)
        _exit(4);
    for (unsigned i = 0; i < FIXTURE_SLOTS; i++)
        write_page(0, i);
    for (unsigned i = 0; i < 3; i++)
        write_page(1, i);

    pages[0][4] = PAGE_MAYBE;
    request(TIER_FORGET, 0, 4);
    pages[0][4] = PAGE_ABSENT;

    set_all(1, PAGE_PRESENT, PAGE_MAYBE);
    request(TIER_DROP, 1, 0);
    set_all(1, PAGE_MAYBE, PAGE_ABSENT);

    f.quota_bytes = FIXTURE_SEGMENT_BYTES;
    set_all(0, PAGE_PRESENT, PAGE_MAYBE);
    write_page(0, 40);
    for (unsigned i = 0; i < FIXTURE_SLOTS; i++) /* the first life has ended */
        pages[0][i] = PAGE_ABSENT;
    write_page(0, 41);
    disk_fixture_close(&f);
    f.options.folder.bytes = FIXTURE_SEGMENT_BYTES; /* a smaller tier */
    set_all(0, PAGE_PRESENT, PAGE_MAYBE);
    disk_fixture_open(&f);
    disk_fixture_close(&f);
    _exit(0);
}

static void live_and_die(void)
{
    pid_t pid;
    int status;

    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        if (ev_new(&f.ev, NULL) < 0)
            _exit(5);
        live();
    }
    assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != KILLED) {
        (void) fprintf(stderr, "exit status %d at call %u\n", WEXITSTATUS(status), kill_at);
        CU_FAIL("the process failed before it was killed");
    }
    n_calls = WEXITSTATUS(status) == KILLED; /* whether the call was reached */
}

/* ---- what the next process finds ---- */

static void expect_pages(void)
{
    for (unsigned t = 0; t < TENANTS; t++) {
        for (unsigned i = 0; i < NUMBERS; i++) {
            int r = disk_fixture_read(&f, t, i);
            bool may_be = r == 0 ? pages[t][i] != PAGE_ABSENT : r == -ENOENT && pages[t][i] != PAGE_PRESENT;

            if (!may_be) {
                (void) fprintf(stderr, "call %u: page %u of tenant %u in state %u: %d\n", kill_at, i, t,
                               pages[t][i], r);
                CU_FAIL("a page that was reported is missing, or another one was found");
            }
        }
    }
}

/* Return: whether the call was reached. */
static bool kill_one(unsigned nth, bool middle)
{
    bool reached;

    memset(pages, PAGE_ABSENT, TENANTS * sizeof(*pages));
    disk_fixture_init(&f);
    f.options.check_ms = UINT64_MAX / 2; /* each life has the same calls: none that depends on the time */
    kill_at = nth;
    in_the_middle = middle;
    n_calls = 0;
    live_and_die();
    reached = n_calls == 1;
    n_calls = kill_at + 1; /* no further call is the last one */
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL_FATAL(disk_fixture_status(&f).state, TIER_READY);
    expect_pages();
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 1, 1000), 0); /* and the tier goes on */
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 1000), 0);
    disk_fixture_deinit(&f);
    return reached;
}

static void test_kill_before_each_call(void)
{
    unsigned n = 0;

    pages = mmap(NULL, TENANTS * sizeof(*pages), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(pages != MAP_FAILED);
    while (kill_one(n + 1, false))
        n++;
    CU_ASSERT(n > 2 * (FIXTURE_SLOTS + 5)); /* a page and a record for each write, and the rest */
    for (unsigned i = 1; i <= n; i++)
        CU_ASSERT_TRUE(kill_one(i, true));
    CU_ASSERT_EQUAL(munmap(pages, TENANTS * sizeof(*pages)), 0);
}

const struct test_case test_cases[] = {
    TEST(test_kill_before_each_call),
    TEST_END,
};
