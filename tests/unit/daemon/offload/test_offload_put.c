/* Tests of daemon/offload: which pages are written when, and what happens if the disk does not take them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/loop/ev.h"
#include "daemon/store/evict.h"
#include "daemon/store/evict_queue.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/faulty_engine.h"
#include "tests/unit/daemon/offload_fixture.h"

const char test_suite[] = "offload_put";

static struct offload_fixture f;

static struct store *store(void)
{
    return &f.devices.list[0].store;
}

static void begin(void)
{
    offload_fixture_init(&f, 2, OFFLOAD_PAGE_BYTES);
    offload_fixture_open(&f);
    CU_ASSERT_EQUAL_FATAL(f.offload->state, TIER_READY);
}

/* Publishes @n pages from @first on; used: each was used once. None is held afterwards. */
static void publish(unsigned tenant, uint64_t first, unsigned n, bool used)
{
    for (unsigned i = 0; i < n; i++) {
        uint32_t slot = offload_fixture_publish(&f, tenant, first + i);

        if (used)
            evict_queue_note_use(pool_slot(&store()->pool, slot));
        store_unhold(store(), PAGE(store(), slot));
    }
}

static void settle(void)
{
    offload_fixture_run(&f, offload_fixture_is_idle);
}

/* Pages are written without a demand; a flush takes those that are held, too. */
static void test_written_ahead(void)
{
    uint32_t held;

    begin();
    publish(0, 0, 5, false);
    publish(1, 0, 3, false);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 8);
    held = offload_fixture_publish(&f, 0, 100);
    offload_write_all(f.offload);
    CU_ASSERT_FALSE(offload_has_written_all(f.offload));
    settle();
    CU_ASSERT_TRUE(offload_has_written_all(f.offload));
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 9);
    CU_ASSERT_TRUE(pool_slot(&store()->pool, held)->is_on_disk);
    store_unhold(store(), PAGE(store(), held));
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 9); /* each page once */
    CU_ASSERT(evict_oldest(store(), f.tenants[0]));
    CU_ASSERT_EQUAL(store()->n_lost, 0);
    offload_fixture_deinit(&f);
}

/* The segment with the copy of a page is used again: the page is written again before it is evicted. */
static void test_replaced_copy(void)
{
    struct slot *slot;

    begin();
    publish(0, 0, 1, true);
    settle();
    offload_fixture_write_out(&f, 0, 100, 40); /* the disk has room for 32 */
    settle();
    slot = offload_fixture_slot(&f, 0, 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(slot);
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 1 + 40 + 1);
    CU_ASSERT(slot->is_on_disk && !slot->was_replaced);
    CU_ASSERT(evict_oldest(store(), f.tenants[0]));
    CU_ASSERT_PTR_NULL(offload_fixture_slot(&f, 0, 0));
    CU_ASSERT_EQUAL(store()->n_lost, 0);
    CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, 0));
    offload_fixture_deinit(&f);
}

/* A page that was not used since is not worth another page's place. */
static void test_replaced_copy_of_unused_page(void)
{
    begin();
    publish(0, 0, 1, false);
    settle();
    offload_fixture_write_out(&f, 0, 100, 40);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 1 + 40);
    CU_ASSERT_FALSE(offload_fixture_slot(&f, 0, 0)->is_on_disk);
    offload_fixture_deinit(&f);
}

/* Memory has more used pages than the disk: they replace each other, but not for ever. */
static void test_more_used_pages_than_disk(void)
{
    uint64_t n;

    begin();
    publish(0, 0, 60, true);
    settle();
    for (unsigned i = 0; i < 50; i++) {
        offload_tick(f.offload);
        settle();
    }
    n = offload_fixture_status(&f).disk.n_written;
    CU_ASSERT(n >= 60 && n <= 60 + OFFLOAD_REWRITES_MAX);
    CU_ASSERT_EQUAL(f.offload->n_rewrites_left, 0);
    offload_tick(f.offload);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, n);

    CU_ASSERT(evict_oldest(store(), f.tenants[0]));
    offload_tick(f.offload); /* room for two more */
    settle();
    CU_ASSERT(offload_fixture_status(&f).disk.n_written <= n + 2);
    offload_fixture_deinit(&f);
}

/* A pass that is cut short goes on where it was: slots with high numbers have their turn. */
static void test_pass_goes_on(void)
{
    uint32_t slots[20];
    struct offload_cursor at;

    begin();
    settle();
    for (unsigned i = 0; i < 20; i++)
        slots[i] = offload_fixture_publish(&f, 0, i); /* held: only a pass finds them */
    faulty_hold(false);
    offload_write_all(f.offload);
    offload_tick(f.offload);
    CU_ASSERT_EQUAL(f.offload->host->n_puts, OFFLOAD_WRITES_MAX);
    at = f.offload->pass.at;
    CU_ASSERT(at.span > 0 || at.index > 0);
    offload_write_all(f.offload);
    CU_ASSERT(f.offload->pass.at.span == at.span && f.offload->pass.at.index == at.index);
    CU_ASSERT_EQUAL(f.offload->pass.n_spans_left, store()->pool.n_spans_max + 1);
    faulty_release();
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 20);
    for (unsigned i = 0; i < 20; i++)
        store_unhold(store(), PAGE(store(), slots[i]));
    offload_fixture_deinit(&f);
}

/* The ends of many queues are all on the disk: looking at them leaves time for a pass. */
static void test_many_queues(void)
{
    uint32_t held;

    offload_fixture_init(&f, 36, OFFLOAD_SMALL_PAGE_BYTES);
    f.config.disk_bytes = f.config.disk_quota_bytes = UINT64_C(64) << 20; /* a segment for each tenant */
    offload_fixture_open(&f);
    for (unsigned t = 0; t < 36; t++)
        for (unsigned i = 0; i < 64; i++)
            store_unhold(store(), PAGE(store(), offload_fixture_publish(&f, t, i)));
    settle();
    held = offload_fixture_publish(&f, 35, 1000);
    offload_write_all(f.offload);
    settle();
    CU_ASSERT_TRUE(pool_slot(&store()->pool, held)->is_on_disk);
    store_unhold(store(), PAGE(store(), held));
    offload_fixture_deinit(&f);
}

static bool is_busy(struct offload_fixture *x)
{
    return offload_fixture_group(x, 0)->offload_after_ms > 0;
}

static bool has_written_9(struct offload_fixture *x)
{
    return offload_fixture_status(x).disk.n_written >= 9 && offload_fixture_is_idle(x);
}

/* Writes are in flight in all segments of a tenant: its pages wait, those of other tenants do not. */
static void test_busy_tenant(void)
{
    offload_fixture_init(&f, 2, OFFLOAD_PAGE_BYTES);
    f.config.disk_quota_bytes = OFFLOAD_SEGMENT_BYTES;
    offload_fixture_open(&f);
    faulty_hold(false);
    publish(0, 0, 9, true);
    offload_fixture_run(&f, is_busy);
    CU_ASSERT_EQUAL(f.offload->host->pause_until_ms, 0);
    CU_ASSERT_EQUAL(offload_fixture_group(&f, 1)->offload_after_ms, 0);
    CU_ASSERT_FALSE(offload_has_written_all(f.offload));
    faulty_release();
    offload_fixture_run(&f, has_written_9);
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_failed, 0);
    offload_fixture_deinit(&f);
}

static bool is_refused(struct offload_fixture *x)
{
    return offload_fixture_status(x).disk.n_refused > 0 && offload_fixture_is_idle(x);
}

/* A quota below one segment: nothing is written, and it is tried again later, not at once. */
static void test_refused(void)
{
    uint64_t n;

    offload_fixture_init(&f, 2, OFFLOAD_PAGE_BYTES);
    f.config.disk_quota_bytes = OFFLOAD_SEGMENT_BYTES - 1;
    offload_fixture_open(&f);
    publish(0, 0, 20, true);
    offload_fixture_run(&f, is_refused);
    n = offload_fixture_status(&f).disk.n_refused;
    CU_ASSERT(n <= OFFLOAD_WRITES_MAX);
    CU_ASSERT(f.offload->forgive_at_ms > ev_now_ms(f.ev));
    CU_ASSERT_EQUAL(offload_fixture_group(&f, 0)->offload_after_ms, f.offload->forgive_at_ms);
    offload_tick(f.offload);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_refused, n);
    CU_ASSERT_TRUE(offload_has_written_all(f.offload));
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 0);

    f.config.disk_quota_bytes = f.config.disk_bytes;
    f.offload->forgive_at_ms = offload_fixture_group(&f, 0)->offload_after_ms = 1; /* its time has come */
    offload_tick(f.offload);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 20);
    CU_ASSERT_EQUAL(f.offload->forgive_at_ms, 0);
    offload_fixture_deinit(&f);
}

/* A page that fits no buffer is not sealed in vain, and does not keep others from the disk. */
static void test_too_large(void)
{
    offload_fixture_init(&f, 1, OFFLOAD_PAGE_BYTES);
    f.config.disk_buffer_bytes = 192 * 1024; /* at most half of them */
    offload_fixture_open(&f);
    publish(0, 0, 3, true);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 0);
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_refused, 0);
    CU_ASSERT(f.offload->forgive_at_ms > 0);
    offload_fixture_deinit(&f);
}

static bool is_off_and_idle(struct offload_fixture *x)
{
    return offload_fixture_is_off(x) && x->offload->host->n_puts == 0;
}

/* A full or failing disk: pages stay in memory, and are written when it works again. */
static void test_failed_write(void)
{
    for (unsigned i = 0; i < 2; i++) {
        begin();
        faulty_set(FAULTY_ERROR, i == 0 ? ENOSPC : EIO, 0, 1);
        publish(0, 0, 6, false);
        offload_fixture_run(&f, is_off_and_idle);
        CU_ASSERT_TRUE(offload_has_written_all(f.offload)); /* a stop does not wait for a disk that is off */
        for (unsigned k = 0; k < 6; k++)
            CU_ASSERT(offload_fixture_slot(&f, 0, k) && !offload_fixture_slot(&f, 0, k)->is_on_disk);
        (void) offload_resume(f.offload); /* or it has resumed by itself */
        offload_fixture_run(&f, offload_fixture_is_idle);
        for (unsigned k = 0; k < 6; k++)
            offload_fixture_drop(&f, 0, k);
        for (unsigned k = 0; k < 6; k++)
            CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, k));
        offload_fixture_deinit(&f);
    }
}

static void test_short_writes(void)
{
    static const enum faulty_kind kinds[] = {FAULTY_SHORT, FAULTY_SHORT_ODD};

    for (unsigned i = 0; i < 2; i++) {
        begin();
        faulty_set(kinds[i], 0, 0, 2);
        publish(0, 0, 6, false);
        settle();
        CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 6);
        for (unsigned k = 0; k < 6; k++)
            offload_fixture_drop(&f, 0, k);
        for (unsigned k = 0; k < 6; k++)
            CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, k));
        offload_fixture_deinit(&f);
    }
}

static bool are_6_at_disk(struct offload_fixture *x)
{
    return offload_fixture_status(x).disk.n_in_flight == 6;
}

/* A page is evicted while the disk writes it, which needs the page in memory no longer. */
static void test_evicted_while_written(void)
{
    begin();
    faulty_hold(false);
    publish(0, 0, 6, false);
    offload_fixture_run(&f, are_6_at_disk);
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT(evict_oldest(store(), f.tenants[0]));
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 0);
    faulty_release();
    settle();
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT_TRUE(offload_fixture_finds(&f, 0, i));
    offload_fixture_deinit(&f);
}

static bool has_no_writes(struct offload_fixture *x)
{
    return x->offload->host->n_puts == 0;
}

/* A deadline passes while the disk does not answer: the page stays in memory, and is written later. */
static void test_write_deadline(void)
{
    begin();
    faulty_hold(true);
    publish(0, 0, 6, false);
    offload_fixture_run(&f, are_6_at_disk);
    disk_tier_ops.expire(f.offload->host->self, ev_now_ms(f.ev) + OFFLOAD_PUT_MS);
    offload_fixture_run(&f, has_no_writes);
    CU_ASSERT(f.offload->host->pause_until_ms > 0);
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_timeouts, 6);
    faulty_release();
    f.offload->host->pause_until_ms = 0;
    settle();
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT(offload_fixture_slot(&f, 0, i)->is_on_disk);
    offload_fixture_deinit(&f);
}

/* A page that was damaged in memory does not reach the disk. It is dropped, unless it is held. */
static void test_damaged_in_memory(void)
{
    struct page_handle h;
    uint32_t slots[2];

    begin();
    for (unsigned i = 0; i < 2; i++) {
        slots[i] = offload_fixture_publish(&f, 0, i);
        CU_ASSERT_FATAL(pool_resolve(&store()->pool, slots[i], &h));
        pool_slot_data(&store()->pool, &h)[5000] ^= 1;
    }
    store_unhold(store(), PAGE(store(), slots[0]));
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 0);
    CU_ASSERT_EQUAL(store()->n_damaged, 2);
    CU_ASSERT_PTR_NULL(offload_fixture_slot(&f, 0, 0));
    CU_ASSERT_FATAL(offload_fixture_slot(&f, 0, 1) != NULL);
    CU_ASSERT_TRUE(offload_fixture_slot(&f, 0, 1)->is_refused);
    CU_ASSERT_EQUAL(f.offload->host->pause_until_ms, 0);
    store_unhold(store(), PAGE(store(), slots[1]));
    offload_fixture_deinit(&f);
}

static bool is_back(struct offload_fixture *x)
{
    return offload_fixture_is_idle(x) && offload_fixture_status(x).disk.n_openings == 2 &&
           offload_fixture_status(x).disk.n_pages == 6; /* the thread reports it a moment later */
}

/* The folder comes back empty: every page in memory is written again. */
static void test_folder_was_emptied(void)
{
    char path[2][128];

    begin();
    publish(0, 0, 5, false);
    settle();
    faulty_set(FAULTY_ERROR, EIO, 0, 1);
    publish(0, 5, 1, false);
    offload_fixture_run(&f, offload_fixture_is_off);
    (void) snprintf(path[0], sizeof(path[0]), "%s/records", f.folder);
    (void) snprintf(path[1], sizeof(path[1]), "%s/pages", f.folder);
    CU_ASSERT(unlink(path[0]) == 0 && unlink(path[1]) == 0);
    (void) offload_resume(f.offload);
    offload_fixture_run(&f, is_back);
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT(offload_fixture_slot(&f, 0, i)->is_on_disk);
    offload_fixture_deinit(&f);
}

/* The next process does not write again what the disk has. */
static void test_next_process(void)
{
    begin();
    publish(0, 0, 5, false);
    settle();
    offload_fixture_close(&f);
    for (unsigned i = 0; i < 5; i++)
        offload_fixture_slot(&f, 0, i)->is_on_disk = 0; /* a restart clears it */
    offload_fixture_open(&f);
    settle();
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_written, 0);
    for (unsigned i = 0; i < 5; i++)
        CU_ASSERT(offload_fixture_slot(&f, 0, i)->is_on_disk);
    offload_fixture_deinit(&f);
}

/* The end comes while pages are at the disk, and for a tier that never opened. */
static void test_end_under_load(void)
{
    begin();
    faulty_hold(true);
    publish(0, 0, 6, false);
    offload_fixture_run(&f, are_6_at_disk);
    offload_fixture_deinit(&f);

    offload_fixture_init(&f, 1, OFFLOAD_PAGE_BYTES);
    faulty_refuse();
    offload_fixture_open(&f);
    CU_ASSERT_EQUAL(f.offload->state, TIER_OFF);
    publish(0, 0, 6, false);
    offload_tick(f.offload);
    CU_ASSERT_TRUE(offload_has_written_all(f.offload));
    offload_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_written_ahead),
    TEST(test_replaced_copy),
    TEST(test_replaced_copy_of_unused_page),
    TEST(test_more_used_pages_than_disk),
    TEST(test_pass_goes_on),
    TEST(test_many_queues),
    TEST(test_busy_tenant),
    TEST(test_refused),
    TEST(test_too_large),
    TEST(test_failed_write),
    TEST(test_short_writes),
    TEST(test_evicted_while_written),
    TEST(test_write_deadline),
    TEST(test_damaged_in_memory),
    TEST(test_folder_was_emptied),
    TEST(test_next_process),
    TEST(test_end_under_load),
    TEST_END,
};
