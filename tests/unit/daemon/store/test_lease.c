/* Leases: bitmaps, limits, expiry; every hold that was taken ends exactly once. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "daemon/store/journal.h"
#include "daemon/store/lease.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "lease";

enum { N = 12 };

static struct store_fixture f;
static struct journal journal;
static uint32_t slots[N];

/* Publishes N pages. Each has one hold without a lease, which teardown() ends. */
static void setup(struct leases *l, uint32_t n_max)
{
    store_fixture_init(&f, 1 << 20, 1 << 18, 1 << 16, UINT64_C(1) << 40);
    for (uint64_t n = 0; n < N; n++)
        slots[n] = store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, NULL);
    assert(journal_new(&journal, NULL) == 0);
    lease_init(l, &journal, 7, n_max);
}

static void hold_all(void)
{
    for (unsigned i = 0; i < N; i++)
        if (slots[i] != SLOT_NONE)
            store_hold(&f.device.store, slots[i]);
}

static uint32_t holds(unsigned i)
{
    return pool_slot(&f.device.store.pool, slots[i])->holds - 1; /* without the fixture's own */
}

static void teardown(struct leases *l)
{
    lease_release_all(l, &f.device.store);
    lease_deinit(l);
    for (unsigned i = 0; i < N; i++) {
        CU_ASSERT_EQUAL(holds(i), 0);
        store_unhold(&f.device.store, slots[i]);
    }
    store_fixture_deinit(&f);
    journal_deinit(&journal);
}

static void test_release_by_bitmap(void)
{
    static const uint8_t some[] = {0x05, 0x08}; /* items 0, 2, 11 */
    static const uint8_t beyond[] = {0x00, 0xf0, 0xff};
    struct leases l;
    uint64_t id;

    setup(&l, 100);
    hold_all();
    CU_ASSERT_EQUAL(lease_add(&l, slots, N, &id), 0);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, some, sizeof(some)), 0);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, some, sizeof(some)), 0); /* again: no change */
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, beyond, sizeof(beyond)), 0);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(holds(i), i == 0 || i == 2 || i == 11 ? 0 : 1);
    CU_ASSERT_EQUAL(l.n_held, N - 3);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, NULL, 0), 0);
    CU_ASSERT_EQUAL(l.n_leases, 0);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, NULL, 0), -ESTALE);
    teardown(&l);
}

/* An old id never names a new lease, even if its place in the table is used again. */
static void test_ids_are_not_reused(void)
{
    struct leases l;
    uint64_t first, second;

    setup(&l, 100);
    hold_all();
    CU_ASSERT_EQUAL(lease_add(&l, slots, N, &first), 0);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, first, NULL, 0), 0);
    hold_all();
    CU_ASSERT_EQUAL(lease_add(&l, slots, N, &second), 0);
    CU_ASSERT_NOT_EQUAL(first, second);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, first, NULL, 0), -ESTALE);
    CU_ASSERT_EQUAL(holds(3), 1);
    for (int i = 0; i < 10000; i++) {
        uint64_t id = test_rand() >> test_rand_below(64);

        if (id != second)
            CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, NULL, 0), -ESTALE);
    }
    teardown(&l);
}

static void test_limit(void)
{
    struct leases l;
    uint64_t ids[20];

    for (uint32_t max = 16; max <= 18; max++) { /* around where the table grows */
        setup(&l, max);
        for (uint32_t i = 0; i < max; i++) {
            hold_all();
            CU_ASSERT_EQUAL(lease_make_room(&l), 0);
            CU_ASSERT_EQUAL(lease_add(&l, slots, N, &ids[i]), 0);
        }
        CU_ASSERT_EQUAL(lease_make_room(&l), -EDQUOT);
        CU_ASSERT_EQUAL(lease_add(&l, slots, N, &ids[max]), -EDQUOT);
        CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, ids[3], NULL, 0), 0);
        CU_ASSERT_EQUAL(lease_make_room(&l), 0);
        teardown(&l);
    }
}

static void test_expiry_keeps_holds(void)
{
    struct leases l;
    uint64_t a, b;

    setup(&l, 100);
    hold_all();
    CU_ASSERT_EQUAL(lease_add(&l, slots, N, &a), 0);
    CU_ASSERT_EQUAL(lease_expire(&l), 1);
    CU_ASSERT_EQUAL(lease_expire(&l), 0);
    hold_all();
    CU_ASSERT_EQUAL(lease_add(&l, slots, N, &b), 0);
    CU_ASSERT_EQUAL(l.n_granted, 1);
    CU_ASSERT_EQUAL(l.n_held, 2 * N);
    CU_ASSERT_EQUAL(holds(5), 2);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, a, NULL, 0), 0); /* RELEASE still ends its holds */
    CU_ASSERT_EQUAL(l.n_granted, 1);
    teardown(&l);
}

static void test_items_without_page(void)
{
    struct leases l;
    uint32_t with_gap[N];
    uint64_t id;

    setup(&l, 100);
    memcpy(with_gap, slots, sizeof(slots));
    with_gap[1] = SLOT_NONE;
    hold_all();
    store_unhold(&f.device.store, slots[1]);
    CU_ASSERT_EQUAL(lease_add(&l, with_gap, N, &id), 0);
    CU_ASSERT_EQUAL(l.n_held, N - 1);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, (const uint8_t[]){0x02}, 1), 0);
    CU_ASSERT_EQUAL(l.n_held, N - 1);
    teardown(&l);
}

const struct test_case test_cases[] = {
    TEST(test_release_by_bitmap),  TEST(test_ids_are_not_reused), TEST(test_limit),
    TEST(test_expiry_keeps_holds), TEST(test_items_without_page), TEST_END,
};
