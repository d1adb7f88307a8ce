/* Leases that a start takes from the journal, grants that expired, and a journal without room. */
#include "daemon/store/lease.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/journal.h"
#include "daemon/store/store.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "lease_restore";

enum { N = 5, MANY = 12, SESSION = 7 };

static struct store_fixture f;
static struct journal journal;
static struct leases leases;
static uint32_t slots[N];

/* Publishes N pages, each with one hold, for a lease to take. */
static void setup(void)
{
    store_fixture_init(&f, 1 << 20, 1 << 18, 1 << 16, UINT64_C(1) << 40);
    for (uint64_t n = 0; n < N; n++)
        slots[n] = store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, NULL);
    assert(journal_new(&journal, NULL) == 0);
    lease_init(&leases, &journal, f.tenants[0]->account, SESSION,
               &(const struct lease_limits){100, 1000, 10000, 10000});
}

/* A lease of pages that have a hold for it. */
static uint64_t add(const uint32_t *numbers, uint32_t n)
{
    struct page_handle pages[MANY];

    numbers_resolve(&f.device.store, numbers, n, pages);
    CU_ASSERT_EQUAL_FATAL(lease_make_room(&leases, n, NULL), 0);
    return lease_add(&leases, pages, n);
}

/* Ends all leases; every page must have lost its only hold. */
static void teardown(void)
{
    lease_release_all(&leases, &f.device.store);
    lease_deinit(&leases);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[i])->holds, 0);
    store_fixture_deinit(&f);
    journal_deinit(&journal);
}

static uint64_t cells_in_use(void)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < journal.head->n_holds && i < 2 * N; i++)
        n += journal.holds[i].slot != SLOT_NONE;
    return n;
}

static uint64_t lease_id(uint64_t serial, uint64_t index)
{
    return serial << LEASE_INDEX_BITS | index;
}

/* Cells of two leases in no order, as the start finds them. */
static void test_restore(void)
{
    uint64_t ids[2] = {lease_id(40, 3), lease_id(41, 20)};
    struct page_handle page;

    setup();
    CU_ASSERT_EQUAL(
        lease_restore(&leases, ids[0], 2, journal_hold_add(&journal, SESSION, 2, ids[0], slots[2])), 0);
    CU_ASSERT_EQUAL(
        lease_restore(&leases, ids[1], 0, journal_hold_add(&journal, SESSION, 0, ids[1], slots[3])), 0);
    CU_ASSERT_EQUAL(
        lease_restore(&leases, ids[0], 0, journal_hold_add(&journal, SESSION, 0, ids[0], slots[0])), 0);
    CU_ASSERT_EQUAL(
        lease_restore(&leases, ids[1], 9, journal_hold_add(&journal, SESSION, 9, ids[1], slots[4])), 0);
    CU_ASSERT_EQUAL(
        lease_restore(&leases, ids[0], 1, journal_hold_add(&journal, SESSION, 1, ids[0], slots[1])), 0);
    CU_ASSERT_EQUAL(leases.n_leases, 2);
    CU_ASSERT_EQUAL(leases.n_held, N);
    CU_ASSERT_EQUAL(leases.n_granted, 0);
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, ids[0], 0, &page),
                    -ESTALE); /* no grant outlives a restart */

    CU_ASSERT_EQUAL(lease_release(&leases, &f.device.store, ids[0], (const uint8_t[]){0x05}, 1), 0);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[0])->holds, 0);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[1])->holds, 1);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[2])->holds, 0);
    CU_ASSERT_EQUAL(lease_release(&leases, &f.device.store, ids[1], NULL, 0), 0);
    CU_ASSERT_EQUAL(leases.n_leases, 1);
    CU_ASSERT_EQUAL(cells_in_use(), 1);
    teardown();
}

/* Two leases whose numbers have the same place in the table, and two cells of one item, cannot both be
 * right. */
static void test_contradicting_cells(void)
{
    uint64_t id = lease_id(40, 3), other = lease_id(41, 3);
    uint32_t cell;

    setup();
    for (uint32_t i = 0; i < N; i++)
        CU_ASSERT_EQUAL(lease_restore(&leases, id, i, journal_hold_add(&journal, SESSION, i, id, slots[i])),
                        0);
    cell = journal_hold_add(&journal, SESSION, 0, other, slots[0]);
    CU_ASSERT_EQUAL(lease_restore(&leases, other, N, cell), -EBADMSG);
    CU_ASSERT_EQUAL(lease_restore(&leases, id, 4, cell), -EBADMSG);
    journal_hold_remove(&journal, cell); /* as the start does */
    CU_ASSERT_EQUAL(leases.n_leases, 1);
    CU_ASSERT_EQUAL(leases.n_held, N);
    CU_ASSERT_EQUAL(lease_release(&leases, &f.device.store, other, NULL, 0), -ESTALE);
    CU_ASSERT_EQUAL(lease_release(&leases, &f.device.store, id, NULL, 0), 0);
    CU_ASSERT_EQUAL(cells_in_use(), 0);
    teardown();
}

/* An expired lease gives no slot to read, but its holds stay. */
static void test_expired_lease_gives_no_slot(void)
{
    uint64_t id;
    struct page_handle page = {.number = 77};

    setup();
    id = add(slots, N);
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, id, N - 1, &page), 0);
    CU_ASSERT_EQUAL(page.number, slots[N - 1]);
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, id, N, &page), -ESTALE);
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, id + (1u << LEASE_INDEX_BITS), 0, &page), -ESTALE);
    CU_ASSERT_EQUAL(lease_release(&leases, &f.device.store, id, (const uint8_t[]){0x01}, 1), 0);
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, id, 0, &page), -ESTALE);
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, id, 1, &page), 0);
    CU_ASSERT_EQUAL(lease_expire(&leases), 1);
    page.number = 77;
    CU_ASSERT_EQUAL(lease_find(&leases, &f.device.store, id, 1, &page), -ESTALE);
    CU_ASSERT_EQUAL(page.number, 77);
    CU_ASSERT_EQUAL(leases.n_held, N - 1);
    teardown();
}

/* A bitmap is as long as its sender says. It lies at the end of its memory, where a sanitizer sees one byte
 * more. */
static void test_bitmap_shorter_than_the_lease(void)
{
    uint32_t items[MANY];
    uint8_t *bitmap = malloc(1);
    uint64_t id;

    setup();
    CU_ASSERT_PTR_NOT_NULL_FATAL(bitmap);
    for (unsigned i = 0; i < MANY; i++)
        items[i] = i >= MANY - N ? slots[i - (MANY - N)] : SLOT_NONE; /* items 7 .. 11 */
    *bitmap = 0xff;
    id = add(items, MANY);
    CU_ASSERT_EQUAL(lease_release(&leases, &f.device.store, id, bitmap, 1), 0);
    CU_ASSERT_EQUAL(leases.n_held, N - 1); /* items 8 .. 11 are beyond the bitmap */
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[0])->holds, 0);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[1])->holds, 1);
    free(bitmap);
    teardown();
}

/* KEEP_LEASES may come in several messages: what none of them lists is released, and marks do not stay. */
static void test_unkept_leases_are_released(void)
{
    uint64_t a, b;

    setup();
    a = add(slots, 2);
    b = add(slots + 2, 3);
    lease_keep(&leases, a);
    lease_keep(&leases, lease_id(99, b & ((1u << LEASE_INDEX_BITS) - 1))); /* another lease's number */
    lease_keep(&leases, lease_id(99, (1u << LEASE_INDEX_BITS) - 1));
    CU_ASSERT_EQUAL(lease_release_unkept(&leases, &f.device.store), 1);
    CU_ASSERT_EQUAL(leases.n_leases, 1);
    CU_ASSERT_EQUAL(leases.n_held, 2);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[0])->holds, 1);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, slots[2])->holds, 0);
    CU_ASSERT_EQUAL(lease_release_unkept(&leases, &f.device.store), 1);
    CU_ASSERT_EQUAL(leases.n_held, 0);
    CU_ASSERT_EQUAL(leases.n_granted, 0);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_restore),
    TEST(test_contradicting_cells),
    TEST(test_expired_lease_gives_no_slot),
    TEST(test_bitmap_shorter_than_the_lease),
    TEST(test_unkept_leases_are_released),
    TEST_END,
};
