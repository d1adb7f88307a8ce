/*
 * Tests of daemon/offload: an array of tiers. A third one, which keeps pages in a plain folder, is used like
 * the others, alone and beside the disk.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/offload/offload_shared.h"
#include "daemon/store/account.h"
#include "daemon/store/evict_queue.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/folder_tier.h"
#include "tests/unit/daemon/offload_fixture.h"

const char test_suite[] = "offload_tiers";

static struct offload_fixture f;
static char path[64];
static struct folder_tier *folder;
static struct offload_tier *tier;

static struct store *store(void)
{
    return &f.devices.list[0].store;
}

/* The tiers of the fixture, and the folder. */
static void begin(bool with_disk)
{
    offload_fixture_init(&f, 1, OFFLOAD_PAGE_BYTES);
    if (!with_disk)
        f.config.disk_dir = NULL;
    f.config.cluster_answer_ms = 1000;
    f.config.cluster_ttl_s = 3600;
    offload_fixture_open(&f);
    (void) strcpy(path, "/tmp/kvcobra-folder-XXXXXX");
    assert(mkdtemp(path));
    folder = folder_tier_new(f.ev, path);
    assert(offload_add_tier(f.offload, &folder_tier_ops, NULL, &tier) == 0);
    tier->self = folder;
}

static void end(void)
{
    offload_fixture_close(&f); /* frees the tier, which removes its files */
    CU_ASSERT_EQUAL(rmdir(path), 0);
    offload_fixture_deinit(&f);
}

static bool has_no_put(struct offload_fixture *x)
{
    return tier->n_puts == 0 && (!x->offload->host || offload_fixture_is_idle(x));
}

/* Drops page @number from memory, when no tier has to seal it: a page that was fetched goes to the disk. */
static void drop(uint64_t number)
{
    offload_fixture_run(&f, has_no_put);
    offload_fixture_drop(&f, 0, number);
}

/*
 * Publishes page @number as a commit does, waits until all tiers have it, and drops it from memory. The disk
 * gets it although it passes over a page that is being sealed for another tier.
 */
static void write_out(uint64_t number)
{
    uint32_t slot = offload_fixture_publish(&f, 0, number);

    evict_queue_note_use(pool_slot(&store()->pool, slot));
    offload_note_published(f.offload, PAGE(store(), slot));
    store_unhold(store(), PAGE(store(), slot));
    drop(number);
}

/* ---- questions ---- */

static struct offload_look look;
static _Alignas(max_align_t) uint8_t look_memory[OFFLOAD_LOOK_BYTES(1)];
static bool has_looked;

static void on_looked(struct offload_look *l)
{
    (void) l;
    has_looked = true;
}

static bool is_answered(struct offload_fixture *x)
{
    (void) x;
    return has_looked;
}

/* Which tier has page @number, besides the disk. NULL: none. */
static struct offload_tier *find(uint64_t number)
{
    const struct offload_place place = {f.tenants[0], &f.space, PAGE_REST};
    const struct chunk_key key = offload_fixture_key(number);

    memset(look_memory, 0, sizeof(look_memory));
    offload_look_init(&look, 1, look_memory);
    look.account = f.tenants[0]->account;
    look.ended = on_looked;
    has_looked = false;
    CU_ASSERT_TRUE_FATAL(offload_may_look(f.offload, f.tenants[0]));
    offload_look_add(f.offload, &look, &place, &key);
    CU_ASSERT_EQUAL_FATAL(offload_look(f.offload, &look, 1000), 0);
    offload_fixture_run(&f, is_answered);
    return look.found[0];
}

static struct offload_arrival arrival;

static bool has_arrived(struct offload_fixture *x)
{
    (void) x;
    return arrival.n_ended > 0;
}

static void on_arrived(struct offload_waiter *w, const struct page_handle *page)
{
    struct offload_arrival *a = (struct offload_arrival *) w;

    a->n_ended++;
    a->slot = page->number;
    if (page->slot)
        store_hold(store(), page);
}

/* Fetches the page, compares it and lets it go. */
static bool fetches(uint64_t number, struct offload_tier *from)
{
    const struct chunk_key key = offload_fixture_key(number);

    arrival = (struct offload_arrival){
        .fixture = &f, .slot = SLOT_NONE, .waiter = {.ended = on_arrived, .deadline_ms = UINT64_MAX}};
    if (offload_fetch(f.offload, offload_fixture_group(&f, 0), &key, from, &arrival.waiter, NULL) < 0)
        return false;

    offload_fixture_run(&f, has_arrived);
    if (arrival.slot == SLOT_NONE)
        return false;

    CU_ASSERT_TRUE(offload_fixture_is_page(&f, 0, number, arrival.slot));
    store_unhold(store(), PAGE(store(), arrival.slot));
    return true;
}

/* ---- tests ---- */

static void test_round_trip(void)
{
    begin(false);
    for (uint64_t i = 0; i < 5; i++)
        write_out(i);
    CU_ASSERT_EQUAL(folder_tier_files(folder), 5);
    CU_ASSERT_EQUAL(tier->shared->counts.n_written, 5);
    for (uint64_t i = 0; i < 5; i++) {
        CU_ASSERT_PTR_EQUAL(find(i), tier);
        CU_ASSERT_TRUE(fetches(i, tier));
    }
    CU_ASSERT_PTR_NULL(find(5));
    CU_ASSERT_FALSE(fetches(5, tier)); /* it said so once, and no longer has it */
    CU_ASSERT_FALSE(fetches(5, NULL));
    CU_ASSERT_EQUAL(tier->shared->counts.n_read, 5);
    CU_ASSERT_EQUAL(tier->shared->counts.n_missed, 1);
    end();
}

/* A question may take twice as long while pages come from the tier. */
static void test_patience(void)
{
    const uint32_t answer_ms = 400; /* the match of find() waits for a second */

    begin(false);
    f.config.cluster_answer_ms = answer_ms;
    write_out(1);
    (void) find(1);
    CU_ASSERT_EQUAL(look.parts[0].look.timeout_ms, answer_ms);
    CU_ASSERT_TRUE(fetches(1, tier));
    (void) find(1);
    CU_ASSERT_EQUAL(look.parts[0].look.timeout_ms, 2 * answer_ms);
    tier->shared->came_ms -= answer_ms;
    (void) find(1);
    CU_ASSERT_EQUAL(look.parts[0].look.timeout_ms, answer_ms);
    end();
}

/* Pages that do not open are misses and go; the next write is a good one. */
static void test_damaged(void)
{
    begin(false);
    write_out(1);
    folder_tier_damage(folder);
    CU_ASSERT_FALSE(fetches(1, tier));
    CU_ASSERT_EQUAL(tier->n_unopened, 1);
    CU_ASSERT_PTR_NULL(find(1));
    CU_ASSERT_EQUAL(folder_tier_files(folder), 0);
    write_out(1);
    CU_ASSERT_TRUE(fetches(1, tier));
    end();
}

static unsigned n_removed;

static void on_removed(void *ctx, int err)
{
    (void) ctx;
    CU_ASSERT_EQUAL(err, 0);
    n_removed++;
}

static bool are_2_removed(struct offload_fixture *x)
{
    (void) x;
    return n_removed == 2;
}

/* The disk has the page, too: it is read there, and a flush reaches both. */
static void test_beside_the_disk(void)
{
    struct offload_subject s = {.key = offload_fixture_key(3)};
    uint32_t n_puts;
    unsigned n_pending;

    begin(true);
    CU_ASSERT(f.offload->n_tiers == 2 && f.offload->host == &f.offload->tiers[0]);
    write_out(3);
    CU_ASSERT_TRUE(offload_has(f.offload, f.tenants[0], &s.key));
    CU_ASSERT_PTR_EQUAL(find(3), tier);
    CU_ASSERT_TRUE(fetches(3, tier));
    CU_ASSERT_EQUAL(offload_fixture_status(&f).disk.n_read, 1);
    CU_ASSERT_EQUAL(tier->shared->counts.n_read, 0);
    drop(3);

    s.account = f.tenants[0]->account;
    offload_group_id(offload_fixture_group(&f, 0), &s.group);
    n_removed = 0;
    CU_ASSERT_EQUAL(offload_flush_page(f.offload, f.tenants[0], &s, on_removed, NULL, &n_pending, &n_puts),
                    0);
    CU_ASSERT(n_pending == 2 && n_puts == 0);
    offload_fixture_run(&f, are_2_removed);
    CU_ASSERT_PTR_NULL(find(3));
    CU_ASSERT_FALSE(fetches(3, NULL));
    end();
}

/* A page whose PUT is on its way is removed behind it, though the removal may overtake it. */
static void test_flushed_on_its_way(void)
{
    struct offload_subject s = {.key = offload_fixture_key(3)};
    uint32_t slot, n_puts;
    unsigned n_pending;

    begin(false);
    slot = offload_fixture_publish(&f, 0, 3);
    offload_note_published(f.offload, PAGE(store(), slot));
    store_unhold(store(), PAGE(store(), slot));
    s.account = f.tenants[0]->account;
    offload_group_id(offload_fixture_group(&f, 0), &s.group);
    CU_ASSERT_EQUAL(offload_flush_page(f.offload, f.tenants[0], &s, on_removed, NULL, &n_pending, &n_puts),
                    0);
    CU_ASSERT(n_pending == 1 && n_puts == 1);
    offload_fixture_run(&f, has_no_put);
    CU_ASSERT_PTR_NULL(find(3));
    CU_ASSERT_EQUAL(folder_tier_files(folder), 0);
    end();
}

/* A tier that is not ready is not asked; pages wait for it. */
static void test_not_ready(void)
{
    uint32_t slot;

    begin(false);
    folder_tier_set_ready(folder, false);
    slot = offload_fixture_publish(&f, 0, 1);
    offload_note_published(f.offload, PAGE(store(), slot));
    CU_ASSERT(tier->n_puts == 0 && tier->shared->n_queued == 1);
    CU_ASSERT_FALSE(offload_may_look(f.offload, f.tenants[0]));
    folder_tier_set_ready(folder, true);
    offload_shared_tick(tier);
    CU_ASSERT_EQUAL(tier->n_puts, 1);
    offload_fixture_run(&f, has_no_put);
    CU_ASSERT_EQUAL(folder_tier_files(folder), 1);
    store_unhold(store(), PAGE(store(), slot));
    end();
}

static bool has_refilled(struct offload_fixture *x)
{
    offload_shared_tick(tier);
    return !tier->shared->refill.runs && !tier->shared->refill.is_sent && tier->shared->refill.look.n == 0 &&
           !tier->shared->copies.runs && !tier->shared->copies.repeats && tier->shared->copies.n == 0 &&
           tier->shared->n_queued == 0 && has_no_put(x);
}

/* A tier that lost its pages gets those again that are in memory, and each of them once. */
static void test_refill(void)
{
    enum { PAGES = 6 };
    uint32_t slots[PAGES];

    begin(false);
    for (unsigned i = 0; i < PAGES; i++) {
        slots[i] = offload_fixture_publish(&f, 0, i);
        offload_note_published(f.offload, PAGE(store(), slots[i]));
    }
    offload_fixture_run(&f, has_no_put);
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT(folder_tier_files(folder) == PAGES && tier->shared->counts.n_refilled == 0);

    folder_tier_lose(folder);
    CU_ASSERT_EQUAL(folder_tier_files(folder), 0);
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT_EQUAL(folder_tier_files(folder), PAGES);
    CU_ASSERT_EQUAL(tier->shared->counts.n_refilled, PAGES);
    for (unsigned i = 0; i < PAGES; i++) {
        store_unhold(store(), PAGE(store(), slots[i]));
        drop(i);
        CU_ASSERT_TRUE(fetches(i, tier));
    }
    end();
}

/* A page that comes from the disk, and that the other tier lost, is written there again. */
static void test_refill_from_disk(void)
{
    begin(true);
    write_out(3);
    folder_tier_damage(folder); /* it has the file, which is enough for it */
    CU_ASSERT_TRUE(fetches(3, NULL));
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT_EQUAL(tier->shared->counts.n_refilled, 0);
    drop(3);

    folder_tier_empty(folder);
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT_EQUAL(folder_tier_files(folder), 0);
    CU_ASSERT_TRUE(fetches(3, NULL));
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT_EQUAL(folder_tier_files(folder), 1);
    CU_ASSERT_EQUAL(tier->shared->counts.n_refilled, 1);
    drop(3);
    CU_ASSERT_EQUAL(tier->shared->counts.n_read, 0);
    end();
}

static void forget_on_disk(uint64_t number)
{
    struct offload_subject s = {.account = f.tenants[0]->account, .key = offload_fixture_key(number)};

    offload_group_id(offload_fixture_group(&f, 0), &s.group);
    CU_ASSERT_EQUAL(offload_forget(f.offload->host, &s, TIER_FORGET, NULL, NULL), 0);
    while (offload_is_forgetting(f.offload->host, &s.group, &s.key))
        offload_fixture_run(&f, has_no_put);
}

/* Pages that only the disk has are copied, and open from there. */
static void test_copies(void)
{
    enum { PAGES = 20 }; /* more than are copied at a time, in several segments */

    begin(true);
    for (unsigned i = 0; i < PAGES; i++)
        write_out(i);
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT_EQUAL(tier->shared->counts.n_refilled, 0);
    folder_tier_lose(folder);
    offload_fixture_run(&f, has_refilled);
    CU_ASSERT_EQUAL(folder_tier_files(folder), PAGES);
    CU_ASSERT_EQUAL(tier->shared->counts.n_refilled, PAGES);
    forget_on_disk(0);
    forget_on_disk(PAGES - 1);
    CU_ASSERT_TRUE(fetches(0, NULL));
    CU_ASSERT_TRUE(fetches(PAGES - 1, NULL));
    CU_ASSERT_EQUAL(tier->shared->counts.n_read, 2);
    drop(0);
    drop(PAGES - 1);
    end();
}

static bool is_copying(struct offload_fixture *x)
{
    (void) x;
    offload_shared_tick(tier);
    return tier->shared->copies.n > 0;
}

/* A page that an operator flushes while it is copied is nowhere afterwards. */
static void test_flushed_while_copied(void)
{
    struct offload_subject s = {.key = offload_fixture_key(3)};
    uint32_t n_puts;
    unsigned n_pending;

    begin(true);
    write_out(3);
    folder_tier_lose(folder);
    offload_fixture_run(&f, is_copying);
    s.account = f.tenants[0]->account;
    offload_group_id(offload_fixture_group(&f, 0), &s.group);
    CU_ASSERT_EQUAL(offload_flush_page(f.offload, f.tenants[0], &s, on_removed, NULL, &n_pending, &n_puts),
                    0);
    CU_ASSERT(n_pending == 2 && n_puts == 1);
    offload_fixture_run(&f, has_refilled);
    while (offload_is_forgetting(tier, &s.group, &s.key))
        offload_fixture_run(&f, has_no_put);
    CU_ASSERT_EQUAL(folder_tier_files(folder), 0);
    CU_ASSERT_FALSE(fetches(3, NULL));
    end();
}

/* The daemon ends while pages are copied. */
static void test_end_while_copied(void)
{
    begin(true);
    for (unsigned i = 0; i < 4; i++)
        write_out(i);
    folder_tier_lose(folder);
    offload_fixture_run(&f, is_copying);
    end();
}

/* The filter over the disk promises a page that the disk does not have: the other tier is asked. */
static void test_promised_in_vain(void)
{
    const struct chunk_key key = offload_fixture_key(3);

    begin(true);
    write_out(3);
    forget_on_disk(3);
    CU_ASSERT_TRUE(offload_has(f.offload, f.tenants[0], &key));
    CU_ASSERT_TRUE(fetches(3, NULL));
    CU_ASSERT(tier->shared->counts.n_read == 1 && tier->shared->counts.n_found == 1);
    drop(3); /* the disk had it again */
    forget_on_disk(3);

    folder_tier_lose(folder);
    for (int i = 0; i < 2 * OFFLOAD_BROKEN_MAX; i++) /* a tier that promised nothing is not broken */
        CU_ASSERT_FALSE(fetches(3, NULL));
    CU_ASSERT(offload_may_look(f.offload, f.tenants[0]));
    CU_ASSERT(tier->shared->counts.n_missed == 0 && tier->shared->counts.n_pauses == 0);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_refill),
    TEST(test_refill_from_disk),
    TEST(test_round_trip),
    TEST(test_patience),
    TEST(test_damaged),
    TEST(test_beside_the_disk),
    TEST(test_flushed_on_its_way),
    TEST(test_not_ready),
    TEST(test_promised_in_vain),
    TEST(test_copies),
    TEST(test_flushed_while_copied),
    TEST(test_end_while_copied),
    TEST_END,
};
