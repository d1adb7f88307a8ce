/*
 * Kept pages: what an operator pinned stays while everything else is evicted, until its time, and whatever is
 * documented to end it ends it. Pages have 1024 bytes, an extent holds 256 of them.
 */
#include "daemon/store/kept.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"
#include "daemon/store/store.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "kept";

enum { EXTENT = 256 << 10, UNIT = 64 << 10, PER_EXTENT = 256, SLOT = 1024 };

static struct store_fixture f;
static struct store *const st = &f.device.store;
static uint32_t *slots;
static uint64_t next_key;

static void setup(unsigned n_extents, uint64_t quota_bytes)
{
    store_fixture_init(&f, (uint64_t) n_extents * EXTENT, EXTENT, UNIT, quota_bytes);
    st->lendable_percent = 100;
    slots = calloc((size_t) n_extents * PER_EXTENT, sizeof(*slots));
    CU_ASSERT_PTR_NOT_NULL_FATAL(slots);
}

static void valid(void)
{
    struct errmsg e = {""};

    if (!store_is_valid(st, &e))
        CU_FAIL_FATAL(e.text);
}

static void teardown(void)
{
    valid();
    for (unsigned i = 0; i < FIXTURE_TENANTS; i++)
        kept_end_tenant(st, f.tenants[i], NULL);
    valid();
    store_fixture_deinit(&f);
    free(slots);
}

/* Unheld pages of a tenant, from slots[@first] on. */
static void fill(unsigned tenant, unsigned first, unsigned n)
{
    int r = 0;

    for (unsigned i = first; i < first + n; i++) {
        slots[i] = store_fixture_publish(&f, store_fixture_group(&f, tenant, 0, 1), next_key++, &r);
        CU_ASSERT_NOT_EQUAL_FATAL(slots[i], SLOT_NONE);
        store_unhold(st, PAGE(st, slots[i]));
    }
}

static int keep(unsigned page, uint64_t until_ms)
{
    return kept_begin(st, PAGE(st, slots[page]), until_ms, NULL);
}

static bool is_kept(unsigned page)
{
    const struct slot *s = pool_slot(&st->pool, slots[page]);

    return s && s->state == SLOT_COMMITTED && s->is_kept;
}

/* Every victim goes: those that stay are kept. */
static void evict_all(unsigned tenant)
{
    while (evict_oldest(st, f.tenants[tenant]))
        ;
    valid();
}

static void test_victims_pass_over(void)
{
    setup(4, UINT64_C(1) << 40);
    fill(0, 0, 100);
    for (unsigned i = 10; i < 20; i++)
        CU_ASSERT_EQUAL(keep(i, 1000), 0);
    CU_ASSERT_EQUAL(f.tenants[0]->kept.bytes, 10 * SLOT);
    CU_ASSERT_EQUAL(f.tenants[0]->held_bytes, 10 * SLOT);
    valid();
    evict_all(0);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 10);
    CU_ASSERT(is_kept(10) && is_kept(19));
    CU_ASSERT_FALSE(evict_for_quota(st, f.tenants[0], SIZE_MAX / 2));
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 10);
    teardown();
}

static void test_time(void)
{
    setup(4, UINT64_C(1) << 40);
    fill(0, 0, 4);
    CU_ASSERT_FALSE(kept_tick(st, 0));
    CU_ASSERT_EQUAL(keep(0, 1000), 0);
    CU_ASSERT_EQUAL(keep(1, 2000), 0);
    CU_ASSERT_EQUAL(keep(2, 1000), 0);
    CU_ASSERT_EQUAL(keep(2, 3000), 0); /* again: the later time counts, and one hold */
    CU_ASSERT_EQUAL(f.tenants[0]->kept.n, 3);
    CU_ASSERT_EQUAL(kept_left_ms(PAGE(st, slots[2]), 1000), 2000);
    CU_ASSERT_EQUAL(kept_left_ms(PAGE(st, slots[3]), 0), 0);
    CU_ASSERT(kept_tick(st, 999));
    CU_ASSERT(is_kept(0) && is_kept(1) && is_kept(2));
    CU_ASSERT(kept_tick(st, 1000));
    CU_ASSERT(!is_kept(0) && is_kept(1) && is_kept(2));
    CU_ASSERT(kept_tick(st, 2999));
    CU_ASSERT(!is_kept(1) && is_kept(2));
    CU_ASSERT_EQUAL(keep(2, 2500), 0); /* a shorter time than before */
    CU_ASSERT_FALSE(kept_tick(st, 2999));
    CU_ASSERT_EQUAL(f.tenants[0]->kept.bytes, 0);
    CU_ASSERT_EQUAL(f.tenants[0]->held_bytes, 0);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 4); /* the pages stay, and can go */
    evict_all(0);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 0);
    teardown();
}

/* A client's hold and the pin are two holds. */
static void test_held_too(void)
{
    setup(4, UINT64_C(1) << 40);
    fill(0, 0, 2);
    store_hold(st, PAGE(st, slots[0]));
    CU_ASSERT_EQUAL(keep(0, 1000), 0);
    CU_ASSERT_EQUAL(pool_slot(&st->pool, slots[0])->holds, 2);
    store_unhold(st, PAGE(st, slots[0]));
    evict_all(0);
    CU_ASSERT(is_kept(0));
    store_hold(st, PAGE(st, slots[0]));
    kept_end(st, PAGE(st, slots[0]));
    kept_end(st, PAGE(st, slots[0])); /* once more: nothing */
    CU_ASSERT_EQUAL(pool_slot(&st->pool, slots[0])->holds, 1);
    store_unhold(st, PAGE(st, slots[0]));
    teardown();
}

static void test_limit_of_a_tenant(void)
{
    struct errmsg e = {""};
    uint64_t limit;
    unsigned n;

    setup(16, 4 * EXTENT);
    limit = kept_limit_bytes(st, f.tenants[0]);
    CU_ASSERT_EQUAL(limit, (uint64_t) 4 * EXTENT / 100 * 50);
    n = (unsigned) (limit / SLOT);
    fill(0, 0, n + 1);
    for (unsigned i = 0; i < n; i++)
        CU_ASSERT_EQUAL_FATAL(keep(i, 1000), 0);
    CU_ASSERT_EQUAL(kept_begin(st, PAGE(st, slots[n]), 1000, &e), -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "unpin other prefixes"));
    CU_ASSERT_FALSE(is_kept(n));
    CU_ASSERT_EQUAL(keep(0, 2000), 0); /* those that are kept may be kept longer */
    kept_end(st, PAGE(st, slots[1]));
    CU_ASSERT_EQUAL(keep(n, 1000), 0);
    f.tenants[0]->quota_bytes /= 2; /* lowered below what is kept */
    kept_end(st, PAGE(st, slots[2]));
    CU_ASSERT_EQUAL(keep(2, 1000), -EDQUOT);
    f.tenants[0]->quota_bytes *= 2;
    teardown();
}

/* The quota of each is above half of the pool. */
static void test_limit_of_all(void)
{
    uint64_t half = (uint64_t) 8 * EXTENT / 100 * 50;
    unsigned n = (unsigned) (half / SLOT), first = n / 2;

    setup(8, UINT64_C(1) << 40);
    fill(0, 0, first);
    fill(1, first, n + 1 - first);
    for (unsigned i = 0; i < first; i++)
        CU_ASSERT_EQUAL_FATAL(keep(i, 1000), 0);
    for (unsigned i = first; i < n; i++)
        CU_ASSERT_EQUAL_FATAL(keep(i, 1000), 0);
    CU_ASSERT_EQUAL(keep(n, 1000), -EDQUOT);
    kept_end_tenant(st, f.tenants[0], NULL);
    CU_ASSERT_EQUAL(keep(n, 1000), 0);
    teardown();
}

static void test_limit_of_pages(void)
{
    struct errmsg e = {""};

    setup(140, UINT64_C(1) << 40);
    fill(0, 0, KEPT_PAGES_MAX + 1);
    for (unsigned i = 0; i < KEPT_PAGES_MAX; i++)
        CU_ASSERT_EQUAL_FATAL(keep(i, 1000 + i), 0);
    CU_ASSERT_EQUAL(kept_begin(st, PAGE(st, slots[KEPT_PAGES_MAX]), 1000, &e), -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "16384 pages pinned"));
    CU_ASSERT(kept_tick(st, 1000));
    CU_ASSERT_EQUAL(keep(KEPT_PAGES_MAX, 1000), 0);
    teardown();
}

/* ---- what ends a pin ---- */

static void test_operators_eviction(void)
{
    uint64_t bytes = 0;

    setup(4, UINT64_C(1) << 40);
    fill(0, 0, 10);
    fill(1, 10, 10);
    CU_ASSERT_EQUAL(keep(3, 1000), 0);
    CU_ASSERT_EQUAL(keep(13, 1000), 0);
    CU_ASSERT_EQUAL(evict_some(st, f.tenants[0], f.spaces[1].table_digest, 100, &bytes), 0);
    CU_ASSERT(is_kept(3)); /* another table */
    CU_ASSERT_EQUAL(evict_some(st, f.tenants[0], NULL, 100, &bytes), 10);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 0);
    CU_ASSERT(is_kept(13)); /* another tenant */
    teardown();
}

static void test_space(void)
{
    setup(4, UINT64_C(1) << 40);
    fill(0, 0, 2);
    fill(1, 2, 2);
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(keep(i, 1000), 0);
    kept_end_space(st, &f.spaces[1]);
    CU_ASSERT(is_kept(0) && is_kept(3));
    kept_end_space(st, &f.spaces[0]);
    CU_ASSERT_EQUAL(f.spaces[0].n_busy, 0);
    CU_ASSERT_EQUAL(f.tenants[0]->kept.n + f.tenants[1]->kept.n, 0);
    teardown();
}

/* A lender gets its guarantee although all pages of the extent that the borrower must return are pinned. */
static void test_reclaim(void)
{
    struct pool_extent *x;

    setup(4, UINT64_C(1) << 40);
    fill(1, 0, 4 * PER_EXTENT);
    x = pool_handle(&st->pool, slots[0]).span->extent;
    for (unsigned i = 0; i < 4 * PER_EXTENT;
         i++) { /* the extents are equally busy: the first one is chosen */
        bool in_x = pool_handle(&st->pool, slots[i]).span->extent == x;

        if (in_x)
            CU_ASSERT_EQUAL_FATAL(keep(i, 1000), 0);
        if (!in_x)
            store_hold(st, PAGE(st, slots[i]));
    }
    f.tenants[0]->guarantee_bytes = EXTENT;
    CU_ASSERT_EQUAL(f.tenants[1]->kept.n, PER_EXTENT);
    CU_ASSERT(share_reclaim(st, f.tenants[0]));
    CU_ASSERT_EQUAL(f.tenants[0]->awaited_extent, x->id);
    CU_ASSERT_EQUAL(f.tenants[1]->kept.n, 0);
    CU_ASSERT_EQUAL(share_awaited_bytes(st, f.tenants[0]), 0); /* the pages are gone */
    for (unsigned i = 0; i < 4 * PER_EXTENT; i++)
        if (pool_slot(&st->pool, slots[i]) && pool_slot(&st->pool, slots[i])->holds > 0)
            store_unhold(st, PAGE(st, slots[i]));
    teardown();
}

static void test_damage(void)
{
    setup(4, UINT64_C(1) << 40);
    fill(0, 0, 2);
    CU_ASSERT_EQUAL(keep(0, 1000), 0);
    store_page_checked(st, PAGE(st, slots[0]), false);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 1);
    CU_ASSERT_EQUAL(f.tenants[0]->kept.n, 0);
    CU_ASSERT_EQUAL(keep(1, 1000), 0);
    store_hold(st, PAGE(st, slots[1]));
    store_page_checked(st, PAGE(st, slots[1]), false); /* a client holds it: it stays until that ends */
    CU_ASSERT_EQUAL(pool_slot(&st->pool, slots[1])->holds, 1);
    store_unhold(st, PAGE(st, slots[1]));
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_victims_pass_over),
    TEST(test_time),
    TEST(test_held_too),
    TEST(test_limit_of_a_tenant),
    TEST(test_limit_of_all),
    TEST(test_limit_of_pages),
    TEST(test_operators_eviction),
    TEST(test_space),
    TEST(test_reclaim),
    TEST(test_damage),
    TEST_END,
};
