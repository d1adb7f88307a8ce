/*
 * Which pages are evicted first, and how many. The pool has 4 extents of 256 KiB, cut in units of 64 KiB. A
 * page of space 0 takes 1024 bytes, one of space 1 takes 2176.
 */
#include "daemon/store/evict.h"

#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/reserve.h"
#include "daemon/store/store.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "evict";

enum { SPAN = 64 << 10, EXTENT = 256 << 10, PER_EXTENT = 256, PAGE = 1024, OTHER_PAGE = 2176 };

static struct store_fixture f;

static void setup(void)
{
    store_fixture_init(&f, 4 * EXTENT, EXTENT, SPAN, UINT64_C(1) << 40);
}

static void teardown(void)
{
    struct errmsg e = {""};

    if (!store_is_valid(&f.device.store, &e))
        CU_FAIL(e.text);
    store_fixture_deinit(&f);
}

/* Publishes pages @first .. @first + @n - 1 of the group, without holds. */
static void publish(struct group *g, uint64_t first, unsigned n)
{
    for (uint64_t key = first; key < first + n; key++) {
        uint32_t slot = store_fixture_publish(&f, g, key, NULL);

        CU_ASSERT_NOT_EQUAL_FATAL(slot, SLOT_NONE);
        store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    }
}

static bool is_present(unsigned tenant, uint64_t key)
{
    struct chunk_key k = store_fixture_key(key);
    uint32_t slot = numbers_find(&f.device.store, f.tenants[tenant], &k);

    return slot != SLOT_NONE;
}

/* Keys of the pages of two groups, published by turns: the even ones have pages of @even. */
enum { TURNS = 8 };

static void publish_by_turns(struct group *even, struct group *odd)
{
    for (unsigned i = 0; i < TURNS; i++)
        publish(i % 2 == 0 ? even : odd, i, 1);
}

static struct slot *slot_of(uint64_t key, uint32_t *ret_number)
{
    struct chunk_key k = store_fixture_key(key);

    *ret_number = numbers_find(&f.device.store, f.tenants[0], &k);
    return pool_slot(&f.device.store.pool, *ret_number);
}

/* A pinned page stays in its queue and is passed over, also after a hold in between; then it is the next. */
static void test_pinned_page_is_passed_over(void)
{
    struct store *st = &f.device.store;
    struct group *g;
    struct errmsg e = {""};
    uint32_t first, other;
    uint64_t bytes;

    setup();
    g = store_fixture_group(&f, 0, 0, 1);
    publish(g, 0, 4);
    (void) slot_of(0, &first);
    store_pin(PAGE(st, first));
    CU_ASSERT_EQUAL(g->space->n_busy, 1);
    CU_ASSERT_TRUE(evict_oldest(st, f.tenants[0]));
    CU_ASSERT_TRUE(is_present(0, 0));
    CU_ASSERT_FALSE(is_present(0, 1));
    CU_ASSERT_EQUAL(st->n_lost, 1);

    store_hold(st, PAGE(st, first));
    CU_ASSERT_EQUAL(g->space->n_busy, 1);
    CU_ASSERT_TRUE(store_is_valid(st, &e));
    store_unpin(st, PAGE(st, first));
    CU_ASSERT_EQUAL(g->space->n_busy, 1);
    store_pin(PAGE(st, first));
    store_unhold(st, PAGE(st, first));
    CU_ASSERT_EQUAL(g->space->n_busy, 1);
    CU_ASSERT_TRUE(store_is_valid(st, &e));
    CU_ASSERT_EQUAL(evict_some(st, f.tenants[0], NULL, 100, &bytes), 2);
    CU_ASSERT_FALSE(evict_oldest(st, f.tenants[0])); /* the pinned page alone is left */
    CU_ASSERT_TRUE(is_present(0, 0));

    slot_of(0, &other)->is_on_disk = 1;
    CU_ASSERT_EQUAL(other, first);
    store_unpin(st, PAGE(st, first));
    CU_ASSERT_EQUAL(g->space->n_busy, 0);
    CU_ASSERT_TRUE(evict_oldest(st, f.tenants[0]));
    CU_ASSERT_FALSE(is_present(0, 0));
    CU_ASSERT_EQUAL(st->n_lost, 3); /* the disk had the last one */
    teardown();
}

/* Makes the quota one byte smaller than what is used, again and again: the oldest page of either group
 * leaves. */
static void test_oldest_page_of_all_groups(void)
{
    struct group *a, *b;

    setup();
    a = store_fixture_group(&f, 0, 0, 1);
    b = store_fixture_group(&f, 0, 1, 1);
    publish_by_turns(a, b);
    for (unsigned i = 0; i < TURNS; i++) {
        CU_ASSERT_TRUE(is_present(0, i));
        f.tenants[0]->quota_bytes = tenant_used_bytes(f.tenants[0]) - 1;
        CU_ASSERT_TRUE(evict_for_quota(&f.device.store, f.tenants[0], 0));
        CU_ASSERT_FALSE(is_present(0, i));
        CU_ASSERT_EQUAL(f.tenants[0]->n_pages, TURNS - 1 - i);
    }
    CU_ASSERT_EQUAL(f.tenants[0]->counters.evictions, TURNS);
    teardown();
}

/* Pages of a table that is being retired go first, although the other table's are older. */
static void test_pages_of_a_leaving_table_first(void)
{
    static const unsigned order[TURNS] = {1, 3, 5, 7, 0, 2, 4, 6};
    struct group *a, *b;

    setup();
    a = store_fixture_group(&f, 0, 0, 1);
    b = store_fixture_group(&f, 0, 1, 1);
    publish_by_turns(a, b);
    f.spaces[1].leaves_first = true;
    for (unsigned i = 0; i < TURNS; i++) {
        CU_ASSERT_TRUE(is_present(0, order[i]));
        f.tenants[0]->quota_bytes = tenant_used_bytes(f.tenants[0]) - 1;
        CU_ASSERT_TRUE(evict_for_quota(&f.device.store, f.tenants[0], 0));
        CU_ASSERT_FALSE(is_present(0, order[i]));
    }
    teardown();
}

/* A quota is used to its last byte, and not beyond. */
static void test_quota_is_used_fully(void)
{
    struct group *g;

    setup();
    g = store_fixture_group(&f, 0, 0, 1);
    f.tenants[0]->quota_bytes = 3 * PAGE;
    publish(g, 0, 3);
    CU_ASSERT_EQUAL(f.tenants[0]->counters.evictions, 0);
    publish(g, 3, 1);
    CU_ASSERT_EQUAL(f.tenants[0]->counters.evictions, 1);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 3);
    CU_ASSERT_FALSE(is_present(0, 0));
    f.tenants[0]->quota_bytes--;
    CU_ASSERT_TRUE(evict_for_quota(&f.device.store, f.tenants[0], 0));
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 2);
    teardown();
}

/* An operator's request ends at its limit, counts bytes of every group, and names one table or all. */
static void test_evict_some(void)
{
    struct group *a, *b;
    uint64_t bytes = 77;
    uint32_t held;

    setup();
    a = store_fixture_group(&f, 0, 0, 1);
    b = store_fixture_group(&f, 0, 1, 1);
    publish(a, 0, 10);
    publish(b, 100, 6);
    held = store_fixture_publish(&f, b, 200, NULL);
    CU_ASSERT_EQUAL(evict_some(&f.device.store, f.tenants[0], NULL, 0, &bytes), 0);
    CU_ASSERT_EQUAL(bytes, 0);
    CU_ASSERT_EQUAL(evict_some(&f.device.store, f.tenants[0], f.spaces[1].table_digest, 4, &bytes), 4);
    CU_ASSERT_EQUAL(bytes, 4 * OTHER_PAGE);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 13);
    CU_ASSERT_EQUAL(evict_some(&f.device.store, f.tenants[0], f.spaces[1].table_digest, 4, &bytes), 2);
    CU_ASSERT_EQUAL(bytes, 2 * OTHER_PAGE); /* the held page stays */
    CU_ASSERT_EQUAL(evict_some(&f.device.store, f.tenants[0], f.spaces[2].table_digest, 4, &bytes), 0);
    CU_ASSERT_EQUAL(evict_some(&f.device.store, f.tenants[0], NULL, 9, &bytes), 9);
    CU_ASSERT_EQUAL(bytes, 9 * PAGE);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 2);
    CU_ASSERT_EQUAL(f.spaces[0].n_evictions, 9);
    CU_ASSERT_EQUAL(f.spaces[1].n_evictions, 6);
    CU_ASSERT_EQUAL(f.tenants[0]->counters.evictions, 15);
    store_unhold(&f.device.store, PAGE(&f.device.store, held));
    teardown();
}

/* To take an extent without pages of another tenant evicts no page. */
static void test_empty_extents_of_others_before_pages(void)
{
    struct group *a, *b;
    uint64_t bytes;

    setup();
    a = store_fixture_group(&f, 0, 0, 1);
    b = store_fixture_group(&f, 1, 0, 1);
    publish(b, 0, PER_EXTENT);
    publish(a, 10000, 3 * PER_EXTENT);
    CU_ASSERT_EQUAL(evict_some(&f.device.store, f.tenants[1], NULL, PER_EXTENT, &bytes), PER_EXTENT);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 4);
    publish(a, 20000, PER_EXTENT);
    CU_ASSERT_EQUAL(f.tenants[0]->counters.evictions, 0);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 4 * PER_EXTENT);
    CU_ASSERT_EQUAL(f.tenants[1]->n_extents, 0);
    teardown();
}

/* The group that takes over gets the span with the fewest pages of the group that leaves, and no more. */
static void test_takeover_drops_one_span(void)
{
    struct group *old, *new;

    setup();
    old = store_fixture_group(&f, 0, 0, 1);
    new = store_fixture_group(&f, 0, 1, 1);
    publish(old, 0, 4 * PER_EXTENT);
    publish(new, 10000, 1);
    CU_ASSERT_EQUAL(old->n_used % 64, 0); /* whole spans of 64 pages or more left */
    CU_ASSERT_TRUE(old->n_used < 4 * PER_EXTENT && old->n_used >= 3 * PER_EXTENT);
    CU_ASSERT_EQUAL(new->n_used, 1);
    teardown();
}

/* Finds all pages @first .. @first + @n - 1, as a client does that leases them. */
static void find_all(uint64_t first, unsigned n)
{
    for (uint64_t key = first; key < first + n; key++) {
        struct chunk_key k = store_fixture_key(key);
        uint32_t slot = numbers_find(&f.device.store, f.tenants[0], &k);

        CU_ASSERT_NOT_EQUAL_FATAL(slot, SLOT_NONE);
        store_hold(&f.device.store, PAGE(&f.device.store, slot));
        store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    }
}

/*
 * The pool is full. The pages of one group are older, but were found after all of the other's: the other
 * group, which publishes more, replaces its own pages.
 */
static void test_groups_in_use_keep_their_sizes(void)
{
    struct group *found, *growing;
    unsigned n;

    setup();
    found = store_fixture_group(&f, 0, 0, 1);
    growing = store_fixture_group(&f, 0, 1, 1);
    publish(found, 0, PER_EXTENT);
    publish(growing, 10000, 12 * (SPAN / OTHER_PAGE));
    n = growing->n_used;
    find_all(0, PER_EXTENT);
    publish(growing, 20000, 50);
    CU_ASSERT_EQUAL(found->n_used, PER_EXTENT);
    CU_ASSERT_TRUE(growing->n_used <= n + 50 && growing->n_used >= n);
    CU_ASSERT_TRUE(f.tenants[0]->counters.evictions > 0);
    teardown();
}

/* Of the spans that could be taken over, the one that is not full is: fewer pages are lost. */
static void test_takeover_prefers_a_partial_span(void)
{
    enum { PER_SPAN = 64, FULL = 15, PARTIAL = 5 };
    struct group *old, *new;

    setup();
    old = store_fixture_group(&f, 0, 0, 1);
    new = store_fixture_group(&f, 0, 1, 1);
    publish(old, 0, FULL * PER_SPAN + PARTIAL);
    publish(new, 10000, 1);
    CU_ASSERT_EQUAL(old->n_pages, FULL * PER_SPAN);
    CU_ASSERT_EQUAL(f.tenants[0]->counters.evictions, PARTIAL);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_takeover_prefers_a_partial_span),
    TEST(test_oldest_page_of_all_groups),
    TEST(test_pinned_page_is_passed_over),
    TEST(test_pages_of_a_leaving_table_first),
    TEST(test_quota_is_used_fully),
    TEST(test_evict_some),
    TEST(test_empty_extents_of_others_before_pages),
    TEST(test_takeover_drops_one_span),
    TEST(test_groups_in_use_keep_their_sizes),
    TEST_END,
};
