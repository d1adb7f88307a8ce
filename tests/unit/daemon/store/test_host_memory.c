/* The thread that frees memory objects: its callbacks, clients that keep the object, the end. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/ev.h"
#include "daemon/store/host_memory.h"
#include "gpu/device.h"

const char test_suite[] = "host_memory";

enum { BYTES = 1 << 20 };

static struct {
    struct ev *ev;
    struct host_memory memory;
    unsigned n_freed, n_awaited;
    uint64_t freed_bytes;
} t;

static void on_freed(void *ctx, uint64_t bytes)
{
    CU_ASSERT_PTR_EQUAL(ctx, &t);
    t.freed_bytes += bytes;
    if (++t.n_freed == t.n_awaited)
        ev_stop(t.ev);
}

static const struct host_memory_owner owner = {on_freed, &t};

static void setup(unsigned n_awaited)
{
    t.n_freed = 0;
    t.freed_bytes = 0;
    t.n_awaited = n_awaited;
    assert(ev_new(&t.ev, NULL) == 0);
    assert(host_memory_init(&t.memory, t.ev, NULL) == 0);
}

static void teardown(void)
{
    host_memory_deinit(&t.memory);
    t.ev = ev_free(t.ev);
}

/* An object with one written page, and the client's descriptor of it. */
static struct extent *new_object(int *ret_fd)
{
    struct extent *x = NULL;

    assert(extent_new_unmapped("kvc-test", BYTES, &x, NULL) == 0);
    assert(pwrite(extent_fd(x), "x", 1, 0) == 1);
    *ret_fd = fcntl(extent_fd(x), F_DUPFD_CLOEXEC, 0);
    assert(*ret_fd >= 0);
    return x;
}

static bool has_memory(int fd)
{
    struct stat st;

    assert(fstat(fd, &st) == 0);
    return st.st_blocks > 0;
}

/* The owner is called on the loop, never before host_memory_free() has returned. */
static void test_owner_is_told(void)
{
    _cleanup_(closep) int a = -1, b = -1;

    setup(2);
    host_memory_free(&t.memory, new_object(&a), false, &owner);
    host_memory_free(&t.memory, new_object(&b), true, &owner);
    host_memory_free(&t.memory, NULL, true, &owner);
    CU_ASSERT_EQUAL(t.n_freed, 0);
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT_EQUAL(t.n_freed, 2);
    CU_ASSERT_EQUAL(t.freed_bytes, 2 * BYTES);
    CU_ASSERT(has_memory(a)); /* the client wrote it, and keeps it */
    CU_ASSERT_FALSE(has_memory(b));
    teardown();
}

/* An extent of the pool: clients have a read-only descriptor. */
static void test_mapped_object(void)
{
    struct extent *kept = NULL, *discarded = NULL;
    int fds[2];

    setup(0);
    assert(extent_new("kvc-test", BYTES, EXTENT_READ, &kept, NULL) == 0);
    assert(extent_new("kvc-test", BYTES, EXTENT_READ, &discarded, NULL) == 0);
    fds[0] = fcntl(extent_fd(kept), F_DUPFD_CLOEXEC, 0);
    fds[1] = fcntl(extent_fd(discarded), F_DUPFD_CLOEXEC, 0);
    CU_ASSERT(has_memory(fds[0]) && has_memory(fds[1]));
    host_memory_free(&t.memory, kept, false, NULL);
    host_memory_free(&t.memory, discarded, true, NULL);
    teardown(); /* frees what waits */
    CU_ASSERT(has_memory(fds[0]));
    CU_ASSERT(!has_memory(fds[1]));
    (void) close(fds[0]);
    (void) close(fds[1]);
}

/* What waits at the end is freed, and its owner is called. */
static void test_end(void)
{
    _cleanup_(closep) int a = -1, b = -1;

    setup(0);
    host_memory_free(&t.memory, new_object(&a), true, &owner);
    host_memory_free(&t.memory, new_object(&b), true, NULL);
    teardown();
    CU_ASSERT_EQUAL(t.n_freed, 1);
    CU_ASSERT_FALSE(has_memory(a));
    CU_ASSERT_FALSE(has_memory(b));
}

const struct test_case test_cases[] = {
    TEST(test_owner_is_told),
    TEST(test_mapped_object),
    TEST(test_end),
    TEST_END,
};
