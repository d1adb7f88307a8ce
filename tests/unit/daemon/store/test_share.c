/*
 * Guarantees and lending. The pool has 4 extents of 256 KiB, cut in units of 64 KiB. Pages have 1024 bytes,
 * so an extent holds 256 pages. Every number below follows from these sizes.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/errmsg.h"
#include "daemon/store/share.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "share";

enum { EXTENT = 256 << 10, PER_EXTENT = 256, PAGES_MAX = 4 * PER_EXTENT };

static struct store_fixture f;
static uint32_t slots[FIXTURE_TENANTS][PAGES_MAX];
static uint32_t n_slots[FIXTURE_TENANTS];
static uint64_t next_key;

static void setup(uint32_t lendable_percent)
{
    store_fixture_init(&f, 4 * EXTENT, EXTENT, 64 << 10, UINT64_C(1) << 40);
    f.device.store.lendable_percent = lendable_percent;
    for (unsigned i = 0; i < FIXTURE_TENANTS; i++)
        n_slots[i] = 0;
}

static void valid(void)
{
    struct errmsg e = {""};

    if (!store_is_valid(&f.device.store, &e))
        CU_FAIL_FATAL(e.text);
}

/* Publishes up to @n pages of a tenant, with one hold each. Return: how many; *ret_err: errno of the next. */
static unsigned fill(unsigned tenant, unsigned n, int *ret_err)
{
    *ret_err = 0;
    for (unsigned i = 0; i < n; i++) {
        uint32_t slot = store_fixture_publish(&f, store_fixture_group(&f, tenant, 0, 1), next_key++, ret_err);

        if (*ret_err < 0)
            return i;
        slots[tenant][n_slots[tenant]++] = slot;
    }
    return n;
}

static void release(unsigned tenant)
{
    while (n_slots[tenant] > 0)
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[tenant][--n_slots[tenant]]));
}

static void teardown(void)
{
    for (unsigned i = 0; i < FIXTURE_TENANTS; i++)
        release(i);
    valid();
    store_fixture_deinit(&f);
}

static uint64_t reclaimed_extent(unsigned tenant)
{
    return atomic_load(&f.tenants[tenant]->control->reclaim);
}

static void test_guarantees_fit_the_pool(void)
{
    struct tenant *a, *b;

    setup(75);
    a = f.tenants[0];
    b = f.tenants[1];
    a->guarantee_bytes = 2 * EXTENT + 1; /* three extents */
    CU_ASSERT_EQUAL(share_extents(&f.device.store.pool, a->guarantee_bytes), 3);
    CU_ASSERT(share_fits(&f.device.store, b, EXTENT - 1, 0));
    CU_ASSERT(share_fits(&f.device.store, b, EXTENT, 0));
    CU_ASSERT_FALSE(share_fits(&f.device.store, b, EXTENT + 1, 0));
    /* the present guarantee of the same tenant does not count twice */
    CU_ASSERT(share_fits(&f.device.store, a, 4 * EXTENT, 0));
    CU_ASSERT_FALSE(share_fits(&f.device.store, a, 4 * EXTENT + 1, 0));
    CU_ASSERT(share_fits(&f.device.store, b, 0, 1)); /* one extent for a tenant to come */
    CU_ASSERT_FALSE(share_fits(&f.device.store, b, 0, 2));
    CU_ASSERT_FALSE(share_fits(&f.device.store, b, 1, 1));
    CU_ASSERT_FALSE(share_fits(&f.device.store, b, 0, UINT64_MAX));
    teardown();
}

/* Tenant 0 has 4 extents guaranteed and uses none: ceil(4 (100 - p) / 100) of them stay free. */
static void test_lendable_part(void)
{
    static const struct {
        uint32_t percent;
        uint32_t n_extents;
    } cases[] = {{0, 0}, {24, 0}, {25, 1}, {26, 1}, {74, 2}, {75, 3}, {76, 3}, {99, 3}, {100, 4}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int err;

        setup(cases[i].percent);
        f.tenants[0]->guarantee_bytes = 4 * EXTENT;
        CU_ASSERT_EQUAL(fill(1, PAGES_MAX, &err), cases[i].n_extents * PER_EXTENT);
        CU_ASSERT_EQUAL(err, cases[i].n_extents == 4 ? 0 : -ENOSPC);
        CU_ASSERT_EQUAL(f.tenants[1]->n_extents, cases[i].n_extents);
        valid();
        /* the part that stayed free is available at once */
        CU_ASSERT_EQUAL(fill(0, 1, &err), cases[i].n_extents < 4);
        teardown();
    }
}

/* Unheld pages of the borrower are dropped up to the guarantee; above it the pool is shared evenly. */
static void test_lender_takes_unheld_pages(void)
{
    int err;

    setup(100);
    f.tenants[0]->guarantee_bytes = 3 * EXTENT;
    CU_ASSERT_EQUAL(fill(1, PAGES_MAX, &err), PAGES_MAX);
    release(1);
    CU_ASSERT_EQUAL(fill(0, 3 * PER_EXTENT, &err), 3 * PER_EXTENT);
    CU_ASSERT(f.tenants[0]->n_extents == 3 && f.tenants[1]->n_extents == 1);
    CU_ASSERT_EQUAL(f.tenants[1]->n_pages, PER_EXTENT);
    valid();
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0); /* the other tenant borrowed one extent more, not two */
    CU_ASSERT_EQUAL(err, -ENOSPC);
    CU_ASSERT_EQUAL(reclaimed_extent(1), 0);
    teardown();
}

/* A guarantee in use is never taken, however few extents the others have. */
static void test_used_guarantee_is_safe(void)
{
    int err;

    setup(75);
    f.tenants[0]->guarantee_bytes = 4 * EXTENT;
    CU_ASSERT_EQUAL(fill(0, PAGES_MAX, &err), PAGES_MAX);
    release(0);
    CU_ASSERT_EQUAL(fill(1, 1, &err), 0);
    CU_ASSERT_EQUAL(err, -ENOSPC);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, PAGES_MAX);
    teardown();
}

static void test_held_pages_are_reclaimed(void)
{
    struct pool_extent *x;
    uint64_t id;
    unsigned n = 0;
    int err;

    setup(100);
    f.tenants[0]->guarantee_bytes = EXTENT;
    CU_ASSERT_EQUAL(fill(1, PAGES_MAX, &err), PAGES_MAX);
    store_unhold(
        &f.device.store,
        PAGE(&f.device.store, slots[1][0])); /* in the first extent, which then has the fewest held bytes */
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0);
    CU_ASSERT_EQUAL(err, -EAGAIN);
    id = reclaimed_extent(1);
    x = pool_extent_find(&f.device.store.pool, id);
    CU_ASSERT_FATAL(x && x->tenant == f.tenants[1]);
    CU_ASSERT_PTR_EQUAL(x, pool_handle(&f.device.store.pool, slots[1][1]).span->extent);
    CU_ASSERT_EQUAL(share_awaited_bytes(&f.device.store, f.tenants[0]), (PER_EXTENT - 1) * 1024);
    CU_ASSERT_EQUAL(share_reclaimed_bytes(&f.device.store, f.tenants[1]), (PER_EXTENT - 1) * 1024);
    CU_ASSERT_EQUAL(f.tenants[1]->n_pages, PAGES_MAX - 1); /* the unheld one was evicted at once */
    valid();
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0); /* tried again: no further extent is reclaimed */
    CU_ASSERT(err == -EAGAIN && reclaimed_extent(1) == id);
    CU_ASSERT_EQUAL(fill(1, 1, &err), 0); /* the extent takes no new page of the borrower */
    CU_ASSERT_EQUAL(err, -ENOSPC);
    for (unsigned i = 1; i < PAGES_MAX; i++) {
        if (pool_handle(&f.device.store.pool, slots[1][i]).span->extent != x) {
            slots[1][n++] = slots[1][i];
            continue;
        }
        CU_ASSERT_EQUAL(fill(0, 1, &err), 0);
        CU_ASSERT_EQUAL(err, -EAGAIN);
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[1][i]));
        valid();
    }
    n_slots[1] = n;
    CU_ASSERT_EQUAL(n, PAGES_MAX - PER_EXTENT);
    CU_ASSERT_EQUAL(fill(0, PER_EXTENT, &err), PER_EXTENT);
    CU_ASSERT(reclaimed_extent(1) == 0 && f.tenants[0]->awaited_extent == 0 && f.tenants[1]->n_extents == 3);
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0); /* beyond the guarantee no extent is reclaimed */
    CU_ASSERT_EQUAL(err, -ENOSPC);
    CU_ASSERT_EQUAL(reclaimed_extent(1), 0);
    teardown();
}

/* A tenant within its guarantee keeps its extents, also those with the fewest held bytes. */
static void test_only_borrowed_extents_are_reclaimed(void)
{
    struct pool_extent *x;
    int err;

    setup(100);
    f.tenants[0]->guarantee_bytes = EXTENT;
    f.tenants[2]->guarantee_bytes = EXTENT;
    CU_ASSERT_EQUAL(fill(2, 1, &err), 1);
    CU_ASSERT_EQUAL(fill(1, PAGES_MAX, &err), 3 * PER_EXTENT);
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0);
    CU_ASSERT_EQUAL(err, -EAGAIN);
    CU_ASSERT_EQUAL(reclaimed_extent(2), 0);
    x = pool_extent_find(&f.device.store.pool, reclaimed_extent(1));
    CU_ASSERT_FATAL(x && x->tenant == f.tenants[1] && x->reclaimed);
    teardown();
}

/* A lender evicts its own pages before it gets EAGAIN; the extent is reclaimed all the same. */
static void test_own_pages_before_waiting(void)
{
    int err;

    setup(100);
    f.tenants[0]->guarantee_bytes = 2 * EXTENT;
    CU_ASSERT_EQUAL(fill(0, 1, &err), 1);
    release(0);
    CU_ASSERT_EQUAL(fill(1, PAGES_MAX, &err), 3 * PER_EXTENT);
    /* fills its own extent; the unheld page in it is evicted last */
    CU_ASSERT_EQUAL(fill(0, PER_EXTENT, &err), PER_EXTENT);
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0);
    CU_ASSERT(err == -EAGAIN && reclaimed_extent(1) != 0);
    teardown();
}

static void test_reclaiming_stops_without_requests(void)
{
    uint64_t id;
    int err;

    setup(100);
    f.tenants[0]->guarantee_bytes = EXTENT;
    CU_ASSERT_EQUAL(fill(1, PAGES_MAX, &err), PAGES_MAX);
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0);
    id = reclaimed_extent(1);
    CU_ASSERT(id != 0);
    share_tick(&f.device.store, 1000, 500);
    share_tick(&f.device.store, 1499, 500);
    CU_ASSERT_EQUAL(reclaimed_extent(1), id);
    CU_ASSERT_EQUAL(fill(0, 1, &err), 0); /* tried again: 500 ms more from the next tick on */
    share_tick(&f.device.store, 1499, 500);
    share_tick(&f.device.store, 1998, 500);
    CU_ASSERT_EQUAL(reclaimed_extent(1), id);
    share_tick(&f.device.store, 1999, 500);
    CU_ASSERT(reclaimed_extent(1) == 0 && f.tenants[0]->awaited_extent == 0);
    valid();
    store_unhold(&f.device.store,
                 PAGE(&f.device.store, slots[1][--n_slots[1]])); /* unheld pages are not evicted any longer */
    CU_ASSERT_EQUAL(f.tenants[1]->n_pages, PAGES_MAX);
    CU_ASSERT_EQUAL(fill(1, 1, &err), 1); /* the unheld page is replaced */
    teardown();
}

/* ---- how many extents a tenant may have ---- */

/* A held page of @space and @page_class of tenant @tenant; *ret_err: errno if it is refused. */
static void hold_one(unsigned tenant, unsigned space, unsigned page_class, int *ret_err)
{
    uint32_t slot =
        store_fixture_publish(&f, store_fixture_group(&f, tenant, space, page_class), next_key++, ret_err);

    if (*ret_err == 0)
        slots[tenant][n_slots[tenant]++] = slot;
}

/*
 * Pages of 40 and 36 KiB take an extent for each class. A quota of less than an extent allows two extents;
 * a third page class is refused, and takes nothing from the other tenant.
 */
static void test_quota_limits_extents(void)
{
    int err;

    setup(75);
    f.tenants[0]->quota_bytes = EXTENT - 1;
    CU_ASSERT_EQUAL(fill(1, 1, &err), 1);
    release(1); /* an extent that could be taken */
    hold_one(0, 2, 0, &err);
    CU_ASSERT_EQUAL(err, 0);
    CU_ASSERT_FALSE(share_is_at_limit(&f.device.store, f.tenants[0]));
    hold_one(0, 2, 1, &err);
    CU_ASSERT_EQUAL(err, 0);
    CU_ASSERT(share_is_at_limit(&f.device.store, f.tenants[0]));
    for (unsigned i = 0; i < 3; i++) {
        hold_one(0, 0, 0, &err);
        CU_ASSERT_EQUAL(err, -EDQUOT);
    }
    CU_ASSERT(f.tenants[0]->n_extents == 2 && f.tenants[1]->n_extents == 1 && f.tenants[1]->n_pages == 1);
    hold_one(0, 2, 1, &err); /* in its own extents there is room */
    CU_ASSERT_EQUAL(err, 0);
    f.tenants[0]->guarantee_bytes = 3 * EXTENT; /* an operator's guarantee is met, whatever the quota is */
    hold_one(0, 0, 0, &err);
    CU_ASSERT_EQUAL(err, 0);
    valid();
    teardown();
}

/* One tenant cannot keep the whole pool by holding its pages: a 32nd is left to a tenant without extents. */
static void test_room_for_newcomers(void)
{
    enum { UNIT = 64 << 10, N_EXTENTS = 64 };
    int err = 0;

    store_fixture_init(&f, N_EXTENTS * UNIT, UNIT, UNIT, UINT64_C(1) << 40);
    n_slots[0] = n_slots[1] = 0;
    while (err == 0) /* a page takes most of an extent */
        hold_one(0, 2, 0, &err);
    CU_ASSERT_EQUAL(err, -ENOSPC);
    CU_ASSERT_EQUAL(f.tenants[0]->n_extents, N_EXTENTS - 2);
    hold_one(1, 2, 0, &err);
    CU_ASSERT_EQUAL(err, 0);
    hold_one(1, 2, 0, &err); /* the other extent is for a third tenant */
    CU_ASSERT_EQUAL(err, -ENOSPC);
    valid();
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_quota_limits_extents),
    TEST(test_room_for_newcomers),
    TEST(test_guarantees_fit_the_pool),
    TEST(test_lendable_part),
    TEST(test_lender_takes_unheld_pages),
    TEST(test_used_guarantee_is_safe),
    TEST(test_held_pages_are_reclaimed),
    TEST(test_own_pages_before_waiting),
    TEST(test_only_borrowed_extents_are_reclaimed),
    TEST(test_reclaiming_stops_without_requests),
    TEST_END,
};
