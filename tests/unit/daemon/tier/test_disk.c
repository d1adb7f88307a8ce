/*
 * Tests of daemon/tier/disk.c, disk_queue.c, disk_thread.c, disk_serve.c and disk_open.c: requests and
 * states.
 */
#include "daemon/tier/disk.h"

#include <errno.h>
#include <string.h>

#include "daemon/tier/disk_buffers.h"
#include "daemon/tier/disk_io.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/daemon/disk_fixture.h"
#include "tests/unit/daemon/faulty_engine.h"

const char test_suite[] = "disk";

static struct disk_fixture f;

static void round_trip(void)
{
    struct disk_status s;
    struct chunk_key key = disk_fixture_key(1), none = disk_fixture_key(99);

    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), -ENOENT);
    for (uint64_t i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 7), -EEXIST);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 1, 7), 0); /* the same key of another tenant */
    for (uint64_t i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, i), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 7), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 7), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 8), -ENOENT);
    CU_ASSERT_TRUE(disk_tier_ops.has(f.disk, "tenant-0", &key));
    CU_ASSERT_FALSE(disk_tier_ops.has(f.disk, "tenant-0", &none));
    CU_ASSERT_FALSE(disk_tier_ops.has(f.disk, "tenant-1", &key));

    s = disk_fixture_status(&f);
    CU_ASSERT(s.n_written == 21 && s.n_read == 22 && s.n_missed == 2 && s.n_timeouts == 0 && s.n_failed == 0);
    CU_ASSERT(s.written_bytes == 21 * FIXTURE_PAGE_BYTES && s.read_bytes == 22 * FIXTURE_PAGE_BYTES);
    CU_ASSERT(s.n_segments == 4 && s.physical_bytes >= 4 * FIXTURE_SEGMENT_BYTES);
}

static void test_round_trip(void)
{
    disk_fixture_init(&f);
    disk_fixture_open(&f);
    round_trip();
    disk_fixture_expect_buffers(&f);
    disk_fixture_deinit(&f);
}

static void round_trip_on(const struct disk_engine_ops *const *engines)
{
    f.options.engines = engines;
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL_FATAL(disk_fixture_status(&f).state, TIER_READY);
    round_trip();
    disk_fixture_close(&f);
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, i), 0);
}

/* On a kernel that forbids io_uring these are the threads, and the status says why. */
static void test_round_trip_as_in_the_daemon(void)
{
    bool is_uring;

    disk_fixture_init(&f);
    round_trip_on(disk_engines);
    is_uring = strcmp(disk_fixture_status(&f).engine, "io_uring") == 0;
    CU_ASSERT_EQUAL(disk_fixture_status(&f).engine_why[0] == '\0', is_uring);
    disk_fixture_deinit(&f);
}

/* The first engine does not start here. */
static void test_round_trip_on_threads(void)
{
    static const struct disk_engine_ops *const engines[] = {&faulty_engine_ops, &disk_threads_ops, NULL};

    disk_fixture_init(&f);
    faulty_refuse();
    round_trip_on(engines);
    CU_ASSERT_STRING_EQUAL(disk_fixture_status(&f).engine, "threads");
    CU_ASSERT_PTR_NOT_NULL(strstr(disk_fixture_status(&f).engine_why, "needs an engine"));
    CU_ASSERT_FALSE(disk_fixture_status(&f).is_locked);
    disk_fixture_deinit(&f);
}

/* A start reads no page, and finds all of them. */
static void test_restart(void)
{
    struct chunk_key key = disk_fixture_key(3);

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
    disk_fixture_close(&f);

    faulty_reset();
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(faulty_n_started(), 0);
    for (struct wait w = wait_begin(); disk_fixture_status(&f).n_pages == 0 && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(disk_fixture_status(&f).n_pages, 20);
    CU_ASSERT_TRUE(disk_tier_ops.has(f.disk, "tenant-0", &key));
    for (uint64_t i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, i), 0);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 3), -EEXIST);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 20), 0);
    disk_fixture_deinit(&f);
}

/* Many at a time, in random order of completion. */
static void test_shuffled(void)
{
    enum { N = 8 };
    struct fixture_page p[N];

    disk_fixture_init(&f);
    faulty_shuffle();
    disk_fixture_open(&f);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < N; i++)
            CU_ASSERT_EQUAL_FATAL(disk_fixture_begin(&f, &p[i], TIER_PUT, i % 3, round * N + i), 0);
        for (unsigned i = 0; i < N; i++) {
            disk_fixture_finish(&p[i]);
            CU_ASSERT(p[i].request.result == 0 || p[i].request.result == -EBUSY);
        }
        for (unsigned i = 0; i < N; i++)
            CU_ASSERT_EQUAL_FATAL(disk_fixture_begin(&f, &p[i], TIER_GET, i % 3, round * N + i), 0);
        for (unsigned i = 0; i < N; i++) {
            int r;

            disk_fixture_finish(&p[i]);
            r = disk_fixture_open_page(&p[i]);
            CU_ASSERT(r == 0 || r == -ENOENT); /* four segments for three tenants: some were discarded */
        }
    }
    CU_ASSERT(disk_fixture_status(&f).n_read > 20 && disk_fixture_status(&f).n_discarded > 20);
    disk_fixture_expect_buffers(&f);
    disk_fixture_deinit(&f);
}

static void test_limit_of_requests(void)
{
    struct fixture_page p[9];
    unsigned n = 0;

    disk_fixture_init(&f);
    f.options.n_requests_max = 8;
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    faulty_hold(false);
    while (n < 8 && disk_fixture_begin(&f, &p[n], TIER_GET, 0, 1) == 0)
        n++;
    CU_ASSERT_EQUAL(n, 4); /* a tenant has as many as places are free */
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[4], TIER_GET, 1, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[5], TIER_GET, 1, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[6], TIER_GET, 1, 1), -EAGAIN);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[6], TIER_GET, 2, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[7], TIER_GET, 2, 1), -EAGAIN);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[7], TIER_GET, 0, 1), -EAGAIN);
    faulty_release();
    for (unsigned i = 0; i < 7; i++) {
        disk_fixture_finish(&p[i]);
        CU_ASSERT_EQUAL(disk_fixture_open_page(&p[i]), i < 4 ? 0 : -ENOENT);
    }
    disk_fixture_deinit(&f);
}

/* One operation at a time: the reads of two tenants take turns, in whatever order they came. */
static void test_turns(void)
{
    struct fixture_page p[6], first;
    unsigned n_done[2] = {0, 0};

    disk_fixture_init(&f);
    f.options.depth = 1;
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, i < 4 ? 0 : 1, i), 0);
    faulty_hold(false);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &first, TIER_GET, 0, 0), 0);
    faulty_wait_held(1);
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[i], TIER_GET, i < 4 ? 0 : 1, i), 0);
    faulty_release();
    disk_fixture_finish(&p[5]); /* the last read of tenant 1 */
    for (unsigned i = 0; i < 6; i++)
        n_done[i >= 4] += p[i].is_done;
    CU_ASSERT(n_done[1] == 2 && n_done[0] <= 2);
    disk_fixture_finish(&first);
    CU_ASSERT_EQUAL(disk_fixture_open_page(&first), 0);
    for (unsigned i = 0; i < 6; i++) {
        disk_fixture_finish(&p[i]);
        CU_ASSERT_EQUAL(disk_fixture_open_page(&p[i]), 0);
    }
    disk_fixture_deinit(&f);
}

/* A flood of writes leaves operations and buffers to reads. */
static void test_writes_leave_room(void)
{
    struct fixture_page w[9], r;
    unsigned n = 0;

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 100), 0);
    faulty_hold(false);
    while (n < 9 && disk_fixture_begin(&f, &w[n], TIER_PUT, 0, n) == 0)
        n++;
    CU_ASSERT_EQUAL(n, 8); /* half of the 16 buffers */
    faulty_wait_held(4);   /* half of the 8 operations */
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &r, TIER_GET, 1, 100), 0);
    disk_fixture_finish(&r); /* a miss needs no operation */
    CU_ASSERT_EQUAL(r.request.result, -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &r, TIER_GET, 0, 100), 0);
    faulty_wait_held(5);
    faulty_release();
    disk_fixture_finish(&r);
    CU_ASSERT_EQUAL(disk_fixture_open_page(&r), 0);
    for (unsigned i = 0; i < n; i++) {
        disk_fixture_finish(&w[i]);
        CU_ASSERT_EQUAL(w[i].request.result, 0);
    }
    disk_fixture_deinit(&f);
}

/* Reads whose buffers the loop keeps: the next one waits for a buffer, and gets it. */
static void test_read_waits_for_buffer(void)
{
    struct fixture_page p[4];

    disk_fixture_init(&f);
    f.options.buffer_bytes = 2 * DISK_BUFFER_UNIT_BYTES;
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[i], TIER_GET, 0, 1), 0);
    disk_fixture_finish(&p[0]);
    disk_fixture_finish(&p[1]);
    disk_tier_ops.expire(f.disk, 0); /* nothing is late */
    CU_ASSERT(!p[2].is_done && !p[3].is_done);
    CU_ASSERT_EQUAL(disk_fixture_open_page(&p[0]), 0); /* gives its buffer back */
    disk_fixture_finish(&p[2]);
    disk_tier_ops.expire(f.disk, UINT64_MAX); /* the last one waits for a buffer at its deadline */
    disk_fixture_finish(&p[3]);
    CU_ASSERT_EQUAL(p[3].request.result, -ETIMEDOUT);
    CU_ASSERT_EQUAL(disk_fixture_open_page(&p[1]), 0);
    CU_ASSERT_EQUAL(disk_fixture_open_page(&p[2]), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    disk_fixture_deinit(&f);
}

/* A disk that does not answer: requests end at their deadline, and their buffers when it does. */
static void deadlines(bool cancels)
{
    struct fixture_page r, w, waiting[8];

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    faulty_hold(cancels);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &r, TIER_GET, 0, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &w, TIER_PUT, 0, 2), 0);
    faulty_wait_held(2);
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(disk_fixture_begin(&f, &waiting[i], TIER_PUT, 1, i), 0);
    disk_tier_ops.expire(f.disk, FIXTURE_DEADLINE_MS - 1);
    CU_ASSERT(!r.is_done && !w.is_done);
    disk_tier_ops.expire(f.disk, FIXTURE_DEADLINE_MS);
    disk_fixture_finish(&r);
    disk_fixture_finish(&w);
    CU_ASSERT(r.request.result == -ETIMEDOUT && !r.request.data && w.request.result == -ETIMEDOUT);
    for (unsigned i = 0; i < 4; i++) {
        disk_fixture_finish(&waiting[i]);
        CU_ASSERT_EQUAL(waiting[i].request.result, -ETIMEDOUT);
    }
    CU_ASSERT_EQUAL(disk_fixture_status(&f).n_timeouts, 6);
    if (cancels)
        disk_fixture_expect_buffers(&f); /* before the disk answers */
    faulty_release();
    disk_fixture_expect_buffers(&f);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);                     /* the tier works on */
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 2), cancels ? -ENOENT : 0); /* written after all */
    disk_fixture_deinit(&f);
}

static void test_deadlines(void)
{
    deadlines(false);
    deadlines(true);
}

static void test_refused_writes(void)
{
    disk_fixture_init(&f);
    disk_fixture_open(&f);
    f.quota_bytes = FIXTURE_SEGMENT_BYTES - 1;
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), -EDQUOT);
    CU_ASSERT_EQUAL(disk_fixture_status(&f).n_refused, 1);
    f.quota_bytes = FIXTURE_SEGMENT_BYTES;
    for (uint64_t i = 0; i < 3 * FIXTURE_SLOTS; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
    CU_ASSERT_EQUAL(disk_fixture_status(&f).n_discarded, 2 * FIXTURE_SLOTS);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 3 * FIXTURE_SLOTS - 1), 0);
    CU_ASSERT_PTR_NULL(disk_tier_ops.take(f.disk, UINT64_MAX));
    disk_fixture_expect_buffers(&f);
    disk_fixture_deinit(&f);
}

/* The segment of a page is discarded while the page is read. */
static void test_discarded_while_read(void)
{
    struct fixture_page p, drop;

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    faulty_hold(false);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_GET, 0, 1), 0);
    faulty_wait_held(1);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &drop, TIER_DROP, 0, 0), 0);
    disk_fixture_finish(&drop);
    CU_ASSERT_EQUAL(drop.request.result, 0);
    faulty_release();
    disk_fixture_finish(&p);
    CU_ASSERT_EQUAL(disk_fixture_open_page(&p), -ENOENT);
    disk_fixture_expect_buffers(&f);
    disk_fixture_deinit(&f);
}

static int ask(unsigned tenant, uint64_t number)
{
    struct fixture_page p;

    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_ASK, tenant, number), 0);
    disk_fixture_finish(&p);
    return p.request.result;
}

/* What a filter says is not certain: a forgotten page is still in it. */
static void test_ask(void)
{
    struct chunk_key key = disk_fixture_key(1);
    struct fixture_page p;

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(ask(0, 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    CU_ASSERT_EQUAL(ask(0, 1), 0);
    CU_ASSERT_EQUAL(ask(1, 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_FORGET, 0, 1), 0);
    disk_fixture_finish(&p);
    CU_ASSERT_TRUE(disk_tier_ops.has(f.disk, "tenant-0", &key));
    CU_ASSERT_EQUAL(ask(0, 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_status(&f).n_missed, 0); /* of reads */
    disk_fixture_deinit(&f);
}

static void test_drop(void)
{
    struct fixture_page d;
    struct chunk_key key = disk_fixture_key(1);

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    for (unsigned t = 0; t < 3; t++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, t, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &d, TIER_DROP, 1, 0), 0); /* tenant and table */
    disk_fixture_finish(&d);
    CU_ASSERT_EQUAL(d.request.result, 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    CU_ASSERT_FALSE(disk_tier_ops.has(f.disk, "tenant-1", &key));
    disk_fixture_close(&f); /* and a restart does not bring it back */
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 2, 1), 0);

    d = (struct fixture_page){.fixture = &f};
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &d, TIER_DROP, 1, 0), 0);
    disk_fixture_finish(&d);
    CU_ASSERT_EQUAL(d.request.result, -ENOENT); /* the tenant has none */
    d.request.drops_any_tenant = true;          /* a table of all tenants */
    d.is_done = false;
    CU_ASSERT_EQUAL(disk_tier_ops.submit(f.disk, &f.shares[0], &d.request), 0);
    disk_fixture_finish(&d);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 2, 1), -ENOENT);
    disk_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_round_trip),
    TEST(test_round_trip_as_in_the_daemon),
    TEST(test_round_trip_on_threads),
    TEST(test_restart),
    TEST(test_shuffled),
    TEST(test_limit_of_requests),
    TEST(test_turns),
    TEST(test_writes_leave_room),
    TEST(test_read_waits_for_buffer),
    TEST(test_deadlines),
    TEST(test_refused_writes),
    TEST(test_discarded_while_read),
    TEST(test_ask),
    TEST(test_drop),
    TEST_END,
};
