/* Tests of daemon/offload: fetches, which arrive, fail or are left in every state. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/ev.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/reserve.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/daemon/faulty_engine.h"
#include "tests/unit/daemon/offload_fixture.h"

const char test_suite[] = "offload_fetch";

enum { PAGES = 6 };

static struct offload_fixture f;

static struct store *store(void)
{
    return &f.devices.list[0].store;
}

/* Pages 0 to PAGES - 1 of tenant 0 are on the disk only. */
static void begin_with_places(uint32_t n_work_items)
{
    offload_fixture_init(&f, 2, OFFLOAD_PAGE_BYTES);
    f.n_work_items = n_work_items;
    offload_fixture_open(&f);
    CU_ASSERT_EQUAL_FATAL(f.offload->state, TIER_READY);
    offload_fixture_write_out(&f, 0, 0, PAGES);
}

static void begin(void)
{
    begin_with_places(0);
}

static bool has_no_fetch(struct offload_fixture *x)
{
    return x->offload->n_fetches == 0;
}

static bool has_one_here(struct offload_fixture *x)
{
    return x->offload->n_fetches == 1 && !x->offload->fetch_tree;
}

/* Waits until all fetches have ended; nothing is held or reserved then. */
static void expect_nothing_left(void)
{
    offload_fixture_run(&f, has_no_fetch);
    CU_ASSERT_PTR_NULL(f.offload->fetch_tree);
    CU_ASSERT_EQUAL(f.tenants[0]->held_bytes, 0);
    CU_ASSERT_EQUAL(f.space.n_busy, 0);
}

/* ---- pages that arrive ---- */

/* One read for all who wait; another tenant neither has nor gets the page. */
static void test_shared_fetch(void)
{
    struct offload_arrival a[3], other;
    unsigned n;

    begin();
    n = faulty_n_started();
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a[i], 0, 1), 0);
    CU_ASSERT_EQUAL(f.offload->n_fetches, 1);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &other, 1, 1), -ENODATA);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &other, 0, 1000), -ENODATA);
    for (unsigned i = 0; i < 3; i++) {
        if (a[i].n_ended == 0)
            offload_fixture_await(&a[i]);
        CU_ASSERT_FATAL(a[i].n_ended == 1 && a[i].slot != SLOT_NONE);
        CU_ASSERT_EQUAL(a[i].slot, a[0].slot);
    }
    CU_ASSERT_EQUAL(faulty_n_started(), n + 1);
    CU_ASSERT_TRUE(offload_fixture_is_page(&f, 0, 1, a[0].slot));
    CU_ASSERT_EQUAL(pool_slot(&store()->pool, a[0].slot)->holds, 3); /* that of the fetch has ended */
    CU_ASSERT_TRUE(pool_slot(&store()->pool, a[0].slot)->is_on_disk);
    for (unsigned i = 0; i < 3; i++)
        store_unhold(store(), PAGE(store(), a[0].slot));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

static void test_short_reads(void)
{
    static const enum faulty_kind kinds[] = {FAULTY_SHORT, FAULTY_SHORT_ODD};

    for (unsigned i = 0; i < 2; i++) {
        begin();
        faulty_set(kinds[i], 0, 0, 2);
        for (unsigned k = 0; k < PAGES; k++)
            CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, k));
        expect_nothing_left();
        offload_fixture_deinit(&f);
    }
}

/* A client publishes the page while the disk reads it: its page stays, and those who wait get it. */
static void test_published_meanwhile(void)
{
    struct offload_arrival a;
    uint32_t slot;

    begin();
    faulty_hold(false);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 2), 0);
    faulty_wait_held(1);
    slot = offload_fixture_publish(&f, 0, 2);
    faulty_release();
    offload_fixture_await(&a);
    CU_ASSERT_EQUAL(a.slot, slot);
    CU_ASSERT_EQUAL(pool_slot(&store()->pool, slot)->holds, 2);
    store_unhold(store(), PAGE(store(), slot));
    store_unhold(store(), PAGE(store(), slot));
    expect_nothing_left();
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 1);
    offload_fixture_deinit(&f);
}

/* The disk replaces a page while it is fetched: then the page in memory has no copy on the disk. */
static void test_replaced_meanwhile(void)
{
    struct chunk_key key = offload_fixture_key(3);
    struct offload_arrival a;

    begin();
    faulty_hold(false);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 3), 0);
    faulty_wait_held(1);
    offload_fetch_note_removed(f.offload, f.tenants[1], &key); /* of another tenant: without effect */
    offload_fetch_note_removed(f.offload, f.tenants[0], &key);
    faulty_release();
    offload_fixture_await(&a);
    CU_ASSERT_FATAL(a.slot != SLOT_NONE);
    CU_ASSERT_FALSE(pool_slot(&store()->pool, a.slot)->is_on_disk);
    store_unhold(store(), PAGE(store(), a.slot));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* ---- pages that do not ---- */

static void test_failed_reads(void)
{
    static const enum faulty_kind kinds[] = {FAULTY_ERROR, FAULTY_NOTHING, FAULTY_TOO_MUCH};

    for (unsigned i = 0; i < 3; i++) {
        struct offload_arrival a;

        begin();
        faulty_set(kinds[i], EIO, 0, 1);
        CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
        offload_fixture_await(&a);
        CU_ASSERT_EQUAL(a.slot, SLOT_NONE);
        offload_fixture_run(&f, offload_fixture_is_off);
        CU_ASSERT_NOT_EQUAL(offload_fixture_fetch(&f, &a, 0, 1), 0);
        expect_nothing_left();
        (void) offload_resume(f.offload); /* or it has resumed by itself */
        offload_fixture_run(&f, offload_fixture_is_idle);
        CU_ASSERT_FALSE(offload_fixture_finds(&f, 0, 0)); /* what could not be read is not tried again */
        CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 1));
        expect_nothing_left();
        offload_fixture_deinit(&f);
    }
}

static void flip(off_t offset)
{
    char path[128];
    uint8_t byte;
    int fd;

    (void) snprintf(path, sizeof(path), "%s/pages", f.folder);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert(fd >= 0 && pread(fd, &byte, 1, offset) == 1);
    byte ^= 1;
    assert(pwrite(fd, &byte, 1, offset) == 1 && close(fd) == 0);
}

/* Flipped bits of the head, of the payload and of the tag are misses, counted once each. */
static void test_flipped_bits(void)
{
    static const off_t at[] = {0, 40, 70, 5000, OFFLOAD_PAGE_BYTES + 63};
    enum { N = sizeof(at) / sizeof(at[0]) };

    begin();
    for (unsigned i = 0; i < N; i++)
        flip((off_t) i * OFFLOAD_DISK_SLOT_BYTES + at[i]);
    for (unsigned i = 0; i < N; i++) {
        CU_ASSERT_FALSE(offload_fixture_finds(&f, 0, i));
        expect_nothing_left();
        CU_ASSERT_EQUAL(offload_fixture_status(&f).n_unopened, i + 1);
        CU_ASSERT_FALSE(offload_fixture_finds(&f, 0, i)); /* it is forgotten */
        CU_ASSERT_EQUAL(offload_fixture_status(&f).n_unopened, i + 1);
    }
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, N));
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.state, TIER_READY);
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* A key is asked for as a page of another class, as only a faulty client does. */
static void test_other_group(void)
{
    struct chunk_key key = offload_fixture_key(0);
    struct offload_arrival a, other;
    struct errmsg e = {""};
    struct group *first;

    begin();
    CU_ASSERT_EQUAL_FATAL(tenant_group(f.tenants[0], &f.space, PAGE_FIRST, &first), 0);
    faulty_hold(false);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    other = a;
    CU_ASSERT_EQUAL(offload_fetch(f.offload, first, &key, false, &other.waiter, &e), -EBUSY);
    CU_ASSERT(e.text[0] != '\0');
    faulty_release();
    offload_fixture_await(&a);
    CU_ASSERT_FATAL(a.slot != SLOT_NONE);
    store_unhold(store(), PAGE(store(), a.slot));
    expect_nothing_left();
    offload_fixture_drop(&f, 0, 0);

    a.n_ended = 0;
    CU_ASSERT_EQUAL(offload_fetch(f.offload, first, &key, false, &a.waiter, NULL), 0);
    offload_fixture_await(&a);
    CU_ASSERT_EQUAL(a.slot, SLOT_NONE);
    expect_nothing_left();
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 0));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* The tenant's quota is taken by held pages: the fetch does not begin, and others go on. */
static void test_quota(void)
{
    struct offload_arrival a;
    struct errmsg e = {""};
    struct chunk_key key = offload_fixture_key(0);
    uint32_t slot;

    begin();
    slot = offload_fixture_publish(&f, 0, 100);
    f.tenants[0]->quota_bytes = tenant_used_bytes(f.tenants[0]);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), -EDQUOT);
    CU_ASSERT_EQUAL(offload_fetch(f.offload, offload_fixture_group(&f, 0), &key, false, NULL, &e), -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "uid-1000"));
    CU_ASSERT_EQUAL(f.offload->n_fetches, 0);
    CU_ASSERT_PTR_NULL(f.offload->fetch_tree);
    store_unhold(store(), PAGE(store(), slot)); /* now it can be evicted */
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 0));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* ---- waits that end before the fetch ---- */

/* A waiter leaves while the disk reads. The page arrives and stays for a moment. */
static void test_left_while_reading(void)
{
    struct offload_arrival a;

    begin();
    faulty_hold(false);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    faulty_wait_held(1);
    offload_waiter_leave(&a.waiter);
    offload_waiter_leave(&a.waiter); /* without effect */
    faulty_release();
    offload_fixture_run(&f, has_one_here);
    CU_ASSERT_EQUAL(a.n_ended, 0);
    CU_ASSERT(offload_fixture_slot(&f, 0, 0) && offload_fixture_slot(&f, 0, 0)->holds == 1);
    offload_fetch_expire(f.offload, ev_now_ms(f.ev) + OFFLOAD_PROTECT_MS / 2);
    CU_ASSERT_EQUAL(f.offload->n_fetches, 1);
    offload_fetch_expire(f.offload, ev_now_ms(f.ev) + 2 * OFFLOAD_PROTECT_MS);
    CU_ASSERT_EQUAL(f.offload->n_fetches, 0);
    CU_ASSERT_EQUAL(offload_fixture_slot(&f, 0, 0)->holds, 0);
    offload_fixture_deinit(&f);
}

/* Pages for which no request waits stay up to a number: clients may end requests as often as they like. */
static void test_many_left_while_reading(void)
{
    struct offload_arrival a;

    begin();
    faulty_hold(false);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    faulty_wait_held(1);
    offload_waiter_leave(&a.waiter);
    f.offload->n_protected = OFFLOAD_PROTECTED_MAX;
    faulty_release();
    offload_fixture_run(&f, has_no_fetch);
    CU_ASSERT(offload_fixture_slot(&f, 0, 0) && offload_fixture_slot(&f, 0, 0)->holds == 0);
    CU_ASSERT_EQUAL(f.offload->n_protected, OFFLOAD_PROTECTED_MAX);
    f.offload->n_protected = 0;
    offload_fixture_deinit(&f);
}

/* Deadlines of those who wait, each at its time; then that of the read. */
static void test_deadlines(void)
{
    struct offload_arrival a[3];
    uint64_t now_ms = UINT64_C(1) << 40; /* later than the clock: the timer of the tier ends none */

    begin();
    faulty_hold(true);
    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a[i], 0, 0), 0);
        a[i].waiter.deadline_ms = now_ms + i;
    }
    faulty_wait_held(1);
    offload_fetch_expire(f.offload, now_ms - 1);
    CU_ASSERT(a[0].n_ended == 0 && a[1].n_ended == 0);
    offload_fetch_expire(f.offload, now_ms + 1);
    CU_ASSERT(a[0].n_ended == 1 && a[0].slot == SLOT_NONE && a[1].n_ended == 1 && a[2].n_ended == 0);
    CU_ASSERT_EQUAL(f.offload->n_fetches, 1);
    disk_tier_ops.expire(f.offload->host->self, ev_now_ms(f.ev) + OFFLOAD_READ_MS);
    offload_fixture_await(&a[2]);
    CU_ASSERT_EQUAL(a[2].slot, SLOT_NONE);
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_timeouts, 1);
    expect_nothing_left();
    faulty_release();
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 0)); /* the disk still has it */
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* ---- the thread is busy ---- */

struct blocker {
    struct work_item item; /* first member */
    pthread_mutex_t gate;
    atomic_bool runs;
};

static struct blocker blocker = {.gate = PTHREAD_MUTEX_INITIALIZER};
static struct work_share blocker_share;

static bool block(struct work_item *i)
{
    struct blocker *b = (struct blocker *) i;

    atomic_store(&b->runs, true);
    (void) pthread_mutex_lock(&b->gate);
    (void) pthread_mutex_unlock(&b->gate);
    return false;
}

static void on_unblocked(struct work_item *i)
{
    (void) i;
}

static bool is_unblocked(struct offload_fixture *x)
{
    (void) x;
    return blocker_share.n_items == 0;
}

/* The only thread does nothing else from now on, until the gate is unlocked. */
static void block_thread(void)
{
    offload_fixture_run(&f, is_unblocked); /* from an earlier call */
    atomic_store(&blocker.runs, false);
    (void) pthread_mutex_lock(&blocker.gate);
    blocker.item = (struct work_item){.run = block, .done = on_unblocked, .deadline_ms = UINT64_MAX};
    assert(work_submit(f.work, &blocker_share, &blocker.item) == 0);
    for (struct wait w = wait_begin(); !atomic_load(&blocker.runs) && wait_again(&w);)
        ;
}

static bool waits_for_thread(struct offload_fixture *x)
{
    return x->tenants[0]->account->work_share.n_items == 1;
}

/* The page was read, and no thread has opened it yet: the waiter leaves, or the thread comes too late. */
static void test_left_while_opening(void)
{
    struct offload_arrival a, b;

    begin();
    block_thread();
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &b, 0, 0), 0);
    offload_fixture_run(&f, waits_for_thread);
    offload_waiter_leave(&a.waiter);
    (void) pthread_mutex_unlock(&blocker.gate);
    offload_fixture_await(&b);
    CU_ASSERT(a.n_ended == 0 && b.slot != SLOT_NONE);
    store_unhold(store(), PAGE(store(), b.slot));
    expect_nothing_left();

    block_thread();
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 1), 0);
    offload_fixture_run(&f, waits_for_thread);
    work_expire(f.work, UINT64_MAX - 1);
    CU_ASSERT(a.n_ended == 1 && a.slot == SLOT_NONE);
    (void) pthread_mutex_unlock(&blocker.gate);
    expect_nothing_left();
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 1));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

static bool has_read_all(struct offload_fixture *x)
{
    return x->tenants[0]->account->tier_shares[0].n_requests == 0;
}

/* Fetches all pages while the thread is busy and takes fewer, and waits until they were read. */
static void read_without_places(struct offload_arrival a[static PAGES])
{
    begin_with_places(4);
    block_thread();
    for (unsigned i = 0; i < PAGES; i++)
        CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a[i], 0, i), 0);
    offload_fixture_run(&f, has_read_all);
    CU_ASSERT(f.tenants[0]->account->work_share.n_items < PAGES);
}

/* A page that was read waits for a place at the threads, however many wait. */
static void test_more_read_than_places(void)
{
    struct offload_arrival a[PAGES];

    read_without_places(a);
    (void) pthread_mutex_unlock(&blocker.gate);
    for (unsigned i = 0; i < PAGES; i++) {
        if (a[i].n_ended == 0)
            offload_fixture_await(&a[i]);
        CU_ASSERT_FATAL(a[i].n_ended == 1 && a[i].slot != SLOT_NONE);
        CU_ASSERT_TRUE(offload_fixture_is_page(&f, 0, i, a[i].slot));
        store_unhold(store(), PAGE(store(), a[i].slot));
    }
    CU_ASSERT_EQUAL(offload_fixture_status(&f).n_late, 0);
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* What no thread opens in time is dropped and counted; the disk still has it. */
static void test_opened_late(void)
{
    struct offload_arrival a[PAGES];

    read_without_places(a);
    for (unsigned i = 0; i < PAGES; i++) /* each one that ends makes room for the next */
        work_expire(f.work, UINT64_MAX - 1);
    for (unsigned i = 0; i < PAGES; i++)
        CU_ASSERT(a[i].n_ended == 1 && a[i].slot == SLOT_NONE);
    CU_ASSERT_EQUAL(offload_fixture_status(&f).n_late, PAGES);
    (void) pthread_mutex_unlock(&blocker.gate);
    expect_nothing_left();
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 1));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* An operator flushes a page that waits for a place. */
static void test_flushed_while_waiting(void)
{
    struct chunk_key key = offload_fixture_key(PAGES - 1);
    struct offload_arrival a[PAGES];

    read_without_places(a);
    offload_fetch_flush(f.offload, f.tenants[0], &key);
    (void) pthread_mutex_unlock(&blocker.gate);
    for (unsigned i = 0; i < PAGES; i++) {
        if (a[i].n_ended == 0)
            offload_fixture_await(&a[i]);
        CU_ASSERT_EQUAL(a[i].slot == SLOT_NONE, i == PAGES - 1);
        if (a[i].slot != SLOT_NONE)
            store_unhold(store(), PAGE(store(), a[i].slot));
    }
    CU_ASSERT_EQUAL(offload_fixture_status(&f).n_late, 0);
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

/* ---- the end of the daemon ---- */

static void test_end_while_waiting(void)
{
    struct offload_arrival a[PAGES];

    read_without_places(a);
    (void) pthread_mutex_unlock(&blocker.gate);
    offload_fixture_close(&f);
    for (unsigned i = 0; i < PAGES; i++)
        CU_ASSERT(a[i].n_ended == 1 && a[i].slot == SLOT_NONE);
    offload_fixture_deinit(&f);
}

static void test_end_while_reading(void)
{
    struct offload_arrival a;

    begin();
    faulty_hold(true);
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    faulty_wait_held(1);
    offload_fixture_close(&f);
    CU_ASSERT(a.n_ended == 1 && a.slot == SLOT_NONE);
    faulty_release();
    offload_fixture_open(&f);
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 0));
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

static void test_end_while_opening(void)
{
    struct offload_arrival a;

    begin();
    block_thread();
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    offload_fixture_run(&f, waits_for_thread);
    (void) pthread_mutex_unlock(&blocker.gate); /* the thread opens the page, or ends before that */
    offload_fixture_close(&f);
    CU_ASSERT(a.n_ended == 1 && a.slot == SLOT_NONE);
    offload_fixture_deinit(&f);
}

/* An arrived page is protected for those who will ask for it; the end does not wait for that. */
static void test_end_while_protected(void)
{
    struct offload_arrival a;

    begin();
    CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a, 0, 0), 0);
    offload_waiter_leave(&a.waiter);
    offload_fixture_run(&f, has_one_here);
    offload_fixture_close(&f);
    CU_ASSERT_EQUAL(offload_fixture_slot(&f, 0, 0)->holds, 0);
    offload_fixture_deinit(&f);
}

/* The tier goes off while a fetch is on its way, and stays off: what it had is a miss. */
static void test_off_while_reading(void)
{
    struct offload_arrival a[PAGES];

    begin();
    faulty_hold(false);
    faulty_set(FAULTY_ERROR, EIO, 0, 1);
    for (unsigned i = 0; i < PAGES; i++)
        CU_ASSERT_EQUAL(offload_fixture_fetch(&f, &a[i], 0, i), 0);
    faulty_wait_held(PAGES);
    faulty_release();
    for (unsigned i = 0; i < PAGES; i++) {
        if (a[i].n_ended == 0)
            offload_fixture_await(&a[i]);
        if (a[i].slot == SLOT_NONE)
            continue;
        CU_ASSERT_TRUE(offload_fixture_is_page(&f, 0, i, a[i].slot));
        store_unhold(store(), PAGE(store(), a[i].slot));
    }
    CU_ASSERT_EQUAL(a[0].slot, SLOT_NONE);
    expect_nothing_left();
    offload_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_shared_fetch),
    TEST(test_short_reads),
    TEST(test_published_meanwhile),
    TEST(test_replaced_meanwhile),
    TEST(test_failed_reads),
    TEST(test_flipped_bits),
    TEST(test_other_group),
    TEST(test_quota),
    TEST(test_left_while_reading),
    TEST(test_deadlines),
    TEST(test_many_left_while_reading),
    TEST(test_left_while_opening),
    TEST(test_more_read_than_places),
    TEST(test_opened_late),
    TEST(test_flushed_while_waiting),
    TEST(test_end_while_waiting),
    TEST(test_end_while_reading),
    TEST(test_end_while_opening),
    TEST(test_end_while_protected),
    TEST(test_off_while_reading),
    TEST_END,
};
