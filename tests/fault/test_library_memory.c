/*
 * Every allocation of base/, gpu/ and proto/ fails once: the call returns -ENOMEM, gives nothing to its
 * caller, and leaves no block and no descriptor behind. Then the same call succeeds.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/threads.h"
#include "gpu/chunk.h"
#include "gpu/device.h"
#include "gpu/page_layout.h"
#include "gpu/rope.h"
#include "proto/wire.h"
#include "tests/fault/fault.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { NTH_MAX = 100, EXTENT = 1 << 16 };

static struct geometry geometry;
static struct table *table;
static struct extent *extent; /* that others import */
static int owner_fd = -1;
static char folder[64], path[96];
static uint8_t packet[256];
static size_t packet_bytes;

static unsigned n_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");

    assert(d);
    while (readdir(d))
        n++;
    (void) closedir(d);
    return n;
}

/* Calls @run with the 1st, 2nd, 3rd ... allocation failing, until none fails. */
static void walk(int (*run)(struct errmsg *e), bool explains)
{
    unsigned nth;

    for (nth = 1; nth < NTH_MAX; nth++) {
        unsigned fds = n_descriptors();
        long blocks = fault_live_blocks();
        struct errmsg e = {""};
        bool fired;
        int r;

        fault_arm(nth);
        r = run(&e);
        fired = fault_fired();
        fault_arm(0);
        CU_ASSERT_EQUAL(r, fired ? -ENOMEM : 0);
        CU_ASSERT_EQUAL(e.text[0] != '\0', fired && explains);
        CU_ASSERT_EQUAL(fault_live_blocks(), blocks);
        CU_ASSERT_EQUAL(n_descriptors(), fds);
        if (!fired)
            break;
    }
    CU_ASSERT(nth > 1 && nth < NTH_MAX);
}

/* ---- gpu/ ---- */

static int run_layout(struct errmsg *e)
{
    static const struct page_layout untouched;
    struct page_layout l = untouched;
    int r = page_layout_init(&l, table, (struct shard){0, 2});

    (void) e;
    CU_ASSERT_EQUAL(r == 0, memcmp(&l, &untouched, sizeof(l)) != 0);
    page_layout_deinit(&l);
    return r;
}

/* A table that cannot grow keeps its rows. */
static int run_rope(struct errmsg *e)
{
    struct rope_table t = {0};
    float first;
    int r;

    (void) e;
    fault_pause(true);
    CU_ASSERT_EQUAL_FATAL(rope_table_cover(&t, &geometry, 5, 10), 0);
    fault_pause(false);
    first = t.cos[0];
    r = rope_table_cover(&t, &geometry, 1000, 300);
    CU_ASSERT(r < 0 ? t.first == 5 && t.n == 10 && memcmp(&t.cos[0], &first, sizeof(first)) == 0
                    : t.first == 1000 && t.n == 300 && t.n_max >= 300);
    rope_table_deinit(&t);
    return r;
}

static int run_chunk_work(struct errmsg *e)
{
    struct chunk_work w = {0};
    int r = chunk_work_init(&w, &geometry, (struct shard){0, 2});

    (void) e;
    CU_ASSERT_EQUAL(r == 0, w.memory != NULL);
    chunk_work_deinit(&w);
    return r;
}

static int run_extent(struct errmsg *e)
{
    struct extent *x = NULL;
    int r = extent_new("kvc-test", EXTENT, EXTENT_READ, &x, e);

    CU_ASSERT_EQUAL(r == 0, x != NULL);
    (void) extent_free(x);
    return r;
}

static int run_kept(struct errmsg *e)
{
    struct extent *x = NULL;
    int fd = -1, r = extent_new_kept("kvc-test", EXTENT, EXTENT_READ, &x, &fd, e);

    CU_ASSERT(r == 0 ? x && fd >= 0 : !x && fd == -1);
    (void) extent_free(x);
    (void) closep(&fd);
    return r;
}

static int run_import(struct errmsg *e)
{
    struct extent *x = NULL;
    int r = extent_import(dup(extent_fd(extent)), EXTENT, EXTENT_READ, &x, e);

    CU_ASSERT_EQUAL(r == 0, x != NULL);
    (void) extent_free(x);
    return r;
}

static int run_adopt(struct errmsg *e)
{
    struct extent *x = NULL;
    int r = extent_adopt(dup(owner_fd), EXTENT, EXTENT_READ, &x, e);

    CU_ASSERT_EQUAL(r == 0, x != NULL);
    (void) extent_free(x);
    return r;
}

static void test_gpu(void)
{
    void *bytes;
    size_t n;

    geometry = random_table_geometry(2, 4, 2, 32);
    assert(random_table_bytes(&geometry, 1, 3, PREDICT_HEAD, &bytes, &n) == 0);
    assert(table_parse(bytes, n, &table, NULL) == 0);
    assert(extent_new_kept("kvc-test", EXTENT, EXTENT_READ, &extent, &owner_fd, NULL) == 0);
    walk(run_layout, false);
    walk(run_rope, false);
    walk(run_chunk_work, false);
    walk(run_extent, true);
    walk(run_kept, true);
    walk(run_import, true);
    walk(run_adopt, true);
    extent = extent_free(extent);
    closep(&owner_fd);
    table = table_unref(table);
    free(bytes);
}

/* ---- base/ ---- */

static int run_threads(struct errmsg *e)
{
    struct threads *t = NULL;
    int r = threads_new(3, &t, e);

    CU_ASSERT_EQUAL(r == 0, t != NULL);
    (void) threads_free(t);
    return r;
}

/* The file has its old bytes or its new ones. */
static int run_write(struct errmsg *e)
{
    void *data = NULL;
    size_t n = 0;
    int r;

    fault_pause(true);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(path, "old", 3, NULL), 0);
    fault_pause(false);
    r = atomic_file_write(path, "new bytes", 9, e);
    fault_pause(true);
    CU_ASSERT_EQUAL_FATAL(atomic_file_read(path, 100, &data, &n, NULL), 0);
    CU_ASSERT(r < 0 ? n == 3 && memcmp(data, "old", 3) == 0 : n == 9 && memcmp(data, "new bytes", 9) == 0);
    free(data);
    fault_pause(false);
    return r;
}

static int run_read(struct errmsg *e)
{
    void *data = NULL;
    size_t n = 77;
    int r = atomic_file_read(path, 100, &data, &n, e);

    CU_ASSERT(r < 0 ? !data && n == 77 : data && n == 9);
    free(data);
    return r;
}

static int run_check(struct errmsg *e)
{
    return atomic_file_check(path, e);
}

static void test_base(void)
{
    (void) snprintf(folder, sizeof(folder), "/tmp/kvc-test-memory-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/file", folder);
    walk(run_threads, true);
    walk(run_write, true);
    walk(run_read, true);
    walk(run_check, true);
    (void) unlink(path);
    CU_ASSERT_EQUAL(rmdir(folder), 0); /* no temporary file is left */
}

/* ---- proto/ ---- */

static void counted_free(void *ctx, void *p)
{
    (void) ctx;
    free(p);
}

/* The free() of libprotobuf-c does not count. */
static ProtobufCAllocator counted = {.free = counted_free};

static int run_unpack(struct errmsg *e)
{
    Kvcobra__Request *q = NULL;
    int r = wire_request_unpack(packet, packet_bytes, &q);

    (void) e;
    CU_ASSERT_EQUAL(r == 0, q != NULL);
    if (q)
        kvcobra__request__free_unpacked(q, &counted);
    return r;
}

static void test_proto(void)
{
    Kvcobra__Request q = KVCOBRA__REQUEST__INIT;
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;

    hello.client_name = (char *) "a test";
    q.body_case = KVCOBRA__REQUEST__BODY_HELLO;
    q.hello = &hello;
    packet_bytes = kvcobra__request__pack(&q, packet);
    walk(run_unpack, false);
}

const char test_suite[] = "library_memory";
const struct test_case test_cases[] = {TEST(test_gpu), TEST(test_base), TEST(test_proto), TEST_END};
