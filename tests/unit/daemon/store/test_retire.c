/*
 * Reservations and retirement on a GPU: extents are descriptors from a source, here of /dev/null, so an
 * access to their bytes would fail. The pool has 4 extents of 256 KiB, cut in units of 64 KiB. Pages have
 * 1024 bytes, so an extent holds 256 pages. Every number below follows from these sizes.
 */
#include "daemon/store/reserve.h"
#include "daemon/store/retire.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"
#include "daemon/store/span.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "retire";

enum { EXTENT = 256 << 10, UNIT = 64 << 10, PER_EXTENT = 256, PER_SPAN = 64, PAGES_MAX = 4 * PER_EXTENT };

static struct store_fixture f;
static uint32_t slots[PAGES_MAX];
static int source_err; /* what the source returns; 0: a descriptor */
static unsigned n_taken;
static uint64_t next_key;

static int take(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    int fd;

    assert(ctx == &f);
    if (source_err < 0)
        return fail(e, source_err, "the source says %d", source_err);
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert(fd >= 0);
    n_taken++;
    return store_fixture_memory(&f, fd, ret);
}

static const struct pool_source source = {take, &f};

static void setup(void)
{
    store_fixture_init(&f, 4 * EXTENT, EXTENT, UNIT, UINT64_C(1) << 40);
    f.device.store.lendable_percent = 100;
    f.device.store.pool.source = &source;
    f.device.store.pool.on_gpu = true;
    source_err = 0;
    n_taken = 0;
}

static void valid(void)
{
    struct errmsg e = {""};

    if (!store_is_valid(&f.device.store, &e))
        CU_FAIL_FATAL(e.text);
}

static void teardown(void)
{
    valid();
    store_fixture_deinit(&f);
}

static struct group *group_of(unsigned tenant)
{
    return store_fixture_group(&f, tenant, 0, 1);
}

/* Publishes @n pages of a tenant, from slots[@first] on, with one hold each. Return: 0; errno. */
static int fill(unsigned tenant, unsigned first, unsigned n)
{
    int r = 0;

    for (unsigned i = 0; i < n && r == 0; i++)
        slots[first + i] = store_fixture_publish(&f, group_of(tenant), next_key++, &r);
    return r;
}

static void unhold(unsigned first, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[first + i]));
}

static struct pool_extent *extent_of(unsigned page)
{
    return pool_handle(&f.device.store.pool, slots[page]).span->extent;
}

static void test_extents_come_from_the_source(void)
{
    int fd;

    setup();
    CU_ASSERT_EQUAL(fill(0, 0, PER_EXTENT + 1), 0);
    CU_ASSERT_EQUAL(n_taken, 2);
    fd = extent_of(0)->gpu_fd;
    CU_ASSERT_TRUE(fd >= 0 && extent_of(0)->memory == NULL);
    valid();
    unhold(0, PER_EXTENT + 1);
    valid();
    while (evict_for_group(&f.device.store, group_of(0)))
        valid();
    while (share_destroy_empty(&f.device.store, f.tenants[1]))
        valid();
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), -1); /* released */
    teardown();
}

/* No page is evicted while an extent is being created. */
static void test_retry_while_an_extent_is_created(void)
{
    uint32_t slot = 77;
    struct errmsg e = {""};

    setup();
    CU_ASSERT_EQUAL(fill(0, 0, PER_EXTENT), 0);
    unhold(0, PER_EXTENT);
    source_err = -EAGAIN;
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(0), 0, &slot, &e), -EAGAIN);
    CU_ASSERT_EQUAL(slot, 77);
    CU_ASSERT_STRING_EQUAL(e.text, "the source says -11");
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, PER_EXTENT);
    valid();
    source_err = 0;
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(0), 0, &slot, &e), 0);
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    teardown();
}

/* Without free GPU memory the store evicts the tenant's own pages, not those of others. */
static void test_a_full_device_is_a_full_pool(void)
{
    uint32_t slot = 77;
    struct errmsg e = {""};

    setup();
    CU_ASSERT_EQUAL(fill(0, 0, PER_EXTENT), 0);
    CU_ASSERT_EQUAL(fill(1, PER_EXTENT, PER_EXTENT), 0);
    unhold(0, PER_EXTENT);
    source_err = -ENOMEM;
    /* all pages of this tenant are held */
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, &e), -ENOSPC);
    CU_ASSERT_EQUAL(slot, 77);
    CU_ASSERT_STRING_EQUAL(e.text, "the source says -12");
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, PER_EXTENT);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 2);
    store_unhold(&f.device.store, PAGE(&f.device.store, slots[PER_EXTENT + 3]));
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, &e), 0);
    CU_ASSERT_EQUAL(slot, slots[PER_EXTENT + 3]); /* the only unheld one */
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    for (unsigned i = 0; i < PER_EXTENT; i++)
        if (i != 3)
            store_unhold(&f.device.store, PAGE(&f.device.store, slots[PER_EXTENT + i]));
    teardown();
}

/* As on the host, a lender takes an idle extent of a borrower; then its memory must be created again. */
static void test_lender_takes_an_extent_and_waits_for_its_own(void)
{
    uint32_t slot = SLOT_NONE;

    setup();
    f.tenants[1]->guarantee_bytes = 2 * EXTENT;
    CU_ASSERT_EQUAL(fill(0, 0, 4 * PER_EXTENT), 0); /* borrows all */
    unhold(0, 4 * PER_EXTENT);
    source_err = -EAGAIN;
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), -EAGAIN);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 3);
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), -EAGAIN);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 3); /* one is enough */
    valid();
    source_err = 0;
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), 0);
    CU_ASSERT_EQUAL(f.tenants[1]->n_extents, 1);
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    teardown();
}

static void test_held_borrower_is_reclaimed(void)
{
    uint32_t slot = SLOT_NONE;

    setup();
    f.tenants[1]->guarantee_bytes = EXTENT;
    CU_ASSERT_EQUAL(fill(0, 0, 4 * PER_EXTENT), 0);
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), -EAGAIN);
    CU_ASSERT_EQUAL(share_awaited_bytes(&f.device.store, f.tenants[1]), EXTENT);
    unhold(0, 4 * PER_EXTENT);
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), 0);
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    teardown();
}

/* Unheld pages are evicted at once, held pages when they are released; then the extent is destroyed. */
static void test_retired_extent_is_destroyed_when_empty(void)
{
    struct pool_extent *x;
    uint32_t reserved = SLOT_NONE, slot = SLOT_NONE;
    uint64_t id;
    int fd;

    setup();
    CU_ASSERT_EQUAL(fill(0, 0, PER_EXTENT - 1), 0);
    /* session 9 is the dead one */
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(0), 9, &reserved, NULL), 0);
    x = extent_of(0);
    id = x->id;
    fd = x->gpu_fd;
    for (unsigned i = 0; i < PER_EXTENT - 1; i += 2)
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[i]));
    retire_reserved(&f.device.store, 8); /* another session */
    CU_ASSERT_FALSE(x->retired);
    retire_reserved(&f.device.store, 9);
    CU_ASSERT_TRUE(x->retired);
    retire_extent(&f.device.store, x); /* again: no change */
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, PER_EXTENT / 2 - 1);
    valid();
    store_discard(&f.device.store, PAGE(&f.device.store, reserved));
    valid();
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(0), 0, &slot, NULL), 0);
    /* not in that extent, although it has room */
    CU_ASSERT_NOT_EQUAL(pool_handle(&f.device.store.pool, slot).span->extent->id, id);
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    for (unsigned i = 1; i < PER_EXTENT - 1; i += 2) {
        retire_tick(&f.device.store);
        CU_ASSERT_PTR_NOT_NULL_FATAL(pool_extent_find(&f.device.store.pool, id));
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[i]));
        valid();
    }
    retire_tick(&f.device.store);
    CU_ASSERT_PTR_NULL(pool_extent_find(&f.device.store.pool, id));
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), -1);
    teardown();
}

/* A retired extent counts until it is destroyed, and then makes room. */
static void test_empty_retired_extent_makes_room(void)
{
    uint32_t slot = SLOT_NONE;

    setup();
    CU_ASSERT_EQUAL(fill(0, 0, 4 * PER_EXTENT), 0);
    for (unsigned i = 0; i < 4; i++)
        retire_extent(&f.device.store, extent_of(i * PER_EXTENT));
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(0), 0, &slot, NULL), -ENOSPC);
    unhold(0, PER_EXTENT);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 4);
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(0), 0, &slot, NULL), 0);
    CU_ASSERT_EQUAL(n_taken, 5);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 4);
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    unhold(PER_EXTENT, 3 * PER_EXTENT);
    retire_tick(&f.device.store);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 1); /* the new one */
    teardown();
}

/* A retired extent is never reclaimed. */
static void test_retired_extent_is_not_reclaimed(void)
{
    uint32_t slot = SLOT_NONE;

    setup();
    f.tenants[1]->guarantee_bytes = EXTENT;
    CU_ASSERT_EQUAL(fill(0, 0, 4 * PER_EXTENT), 0);
    for (unsigned i = 0; i < 3; i++)
        retire_extent(&f.device.store, extent_of(i * PER_EXTENT));
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), -EAGAIN);
    CU_ASSERT_TRUE(extent_of(3 * PER_EXTENT)->reclaimed);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_FALSE(extent_of(i * PER_EXTENT)->reclaimed);
    unhold(0, 4 * PER_EXTENT);
    retire_tick(&f.device.store);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 1);
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, group_of(1), 0, &slot, NULL), 0);
    store_discard(&f.device.store, PAGE(&f.device.store, slot));
    teardown();
}

/* ---- after a restart ---- */

struct kept {
    struct slot_records records;
    uint32_t page, reserved, copying;
};

/* Makes the slot records that a killed process leaves: a copy; everything else is freed. */
static void leave_records(struct kept *k, bool retired)
{
    struct pool_extent *x;
    struct slot_records copy = {.fd = -1};
    uint32_t freed;

    setup();
    CU_ASSERT_EQUAL_FATAL(fill(0, 0, 1), 0);
    assert(numbers_reserve(&f.device.store, group_of(0), 5, &k->reserved, NULL) == 0);
    assert(numbers_reserve(&f.device.store, group_of(0), 6, &freed, NULL) == 0);
    assert(numbers_reserve(&f.device.store, group_of(0), 7, &k->copying, NULL) == 0);
    store_discard(&f.device.store, PAGE(&f.device.store, freed));
    store_claim(PAGE(&f.device.store, k->copying));
    k->page = slots[0];
    x = extent_of(0);
    if (retired)
        retire_extent(&f.device.store, x);
    assert(slot_records_init(&copy, x->n_units, UNIT, NULL) == 0 && copy.bytes == x->records.bytes);
    memcpy(copy.data, x->records.data, copy.bytes);
    k->records = copy;
    store_unclaim(PAGE(&f.device.store, k->copying));
    store_discard(&f.device.store, PAGE(&f.device.store, k->copying));
    store_discard(&f.device.store, PAGE(&f.device.store, k->reserved));
    store_unhold(&f.device.store, PAGE(&f.device.store, k->page));
    teardown();
}

static struct pool_extent *adopt(struct kept *k)
{
    struct pool_extent *x = NULL;
    struct span *span = NULL;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setup();
    assert(pool_extent_adopt(&f.device.store.pool, f.tenants[0], 1, NULL, fd, &k->records, &x, NULL) == 0);
    CU_ASSERT_EQUAL_FATAL(span_adopt(&f.device.store.pool, x, group_of(0), 0, &span), 0);
    CU_ASSERT_EQUAL_FATAL(store_adopt(&f.device.store, PAGE(&f.device.store, k->page), NULL), 0);
    store_adopt_reserved(PAGE(&f.device.store, k->reserved));
    store_adopt_reserved(PAGE(&f.device.store, k->copying));
    return x;
}

static void test_reservations_survive_a_restart(void)
{
    struct kept k;

    leave_records(&k, false);
    (void) adopt(&k);
    store_adopt_holds(&f.device.store, PAGE(&f.device.store, k.page));
    valid();
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, k.reserved)->state, SLOT_RESERVED);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, k.reserved)->session, 5);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, k.copying)->state, SLOT_RESERVED);
    CU_ASSERT_EQUAL(pool_slot(&f.device.store.pool, k.copying)->session, SLOT_WITHOUT_SESSION);
    CU_ASSERT_EQUAL(f.tenants[0]->held_bytes, 2 * 1024);
    for (unsigned i = 0; i < PER_SPAN - 3; i++) { /* a new reservation gets another slot */
        assert(numbers_reserve(&f.device.store, group_of(0), 0, &slots[i], NULL) == 0);
        CU_ASSERT_TRUE(slots[i] != k.reserved && slots[i] != k.copying && slots[i] != k.page);
    }
    for (unsigned i = 0; i < PER_SPAN - 3; i++)
        store_discard(&f.device.store, PAGE(&f.device.store, slots[i]));
    store_discard_reserved(&f.device.store, SLOT_WITHOUT_SESSION);
    /* the page and the reservation of session 5 */
    CU_ASSERT_EQUAL(f.device.store.pool.spans[k.reserved >> POOL_SLOT_BITS]->n_used, 2);
    store_discard(&f.device.store, PAGE(&f.device.store, k.reserved));
    CU_ASSERT_FALSE(store_page_is_whole(&f.device.store,
                                        PAGE(&f.device.store, k.page))); /* until the mover compared it */
    CU_ASSERT_EQUAL(
        numbers_find(&f.device.store, f.tenants[0], &pool_slot(&f.device.store.pool, k.page)->key), k.page);
    store_page_checked(&f.device.store, PAGE(&f.device.store, k.page), true);
    CU_ASSERT_TRUE(store_page_is_whole(&f.device.store, PAGE(&f.device.store, k.page)));
    teardown();
}

static void test_a_retired_extent_stays_retired(void)
{
    struct kept k;
    struct pool_extent *x;

    leave_records(&k, true);
    x = adopt(&k);
    CU_ASSERT_TRUE(x->retired);
    store_adopt_holds(&f.device.store, PAGE(&f.device.store, k.page)); /* no longer held: it is dropped */
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 0);
    valid();
    store_discard(&f.device.store, PAGE(&f.device.store, k.reserved));
    store_discard(&f.device.store, PAGE(&f.device.store, k.copying));
    retire_tick(&f.device.store);
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 0);
    teardown();
}

/* Two COMMITTED slots of one key, which no daemon leaves: the first page stays, the other slot is free. */
static void test_two_pages_of_one_key(void)
{
    struct slot_records copy = {.fd = -1};
    struct pool_extent *x = NULL;
    struct span *span = NULL;
    struct slot *second;
    uint32_t pages[2];

    setup();
    CU_ASSERT_EQUAL_FATAL(fill(0, 0, 2), 0);
    memcpy(pages, slots, sizeof(pages));
    x = extent_of(0);
    assert(slot_records_init(&copy, x->n_units, UNIT, NULL) == 0 && copy.bytes == x->records.bytes);
    memcpy(copy.data, x->records.data, copy.bytes);
    second =
        (struct slot *) (void *) (copy.data + ((const uint8_t *) pool_slot(&f.device.store.pool, pages[1]) -
                                               x->records.data));
    second->key = pool_slot(&f.device.store.pool, pages[0])->key;
    unhold(0, 2);
    teardown();

    setup();
    assert(pool_extent_adopt(&f.device.store.pool, f.tenants[0], 1, NULL,
                             open("/dev/null", O_RDONLY | O_CLOEXEC), &copy, &x, NULL) == 0);
    CU_ASSERT_EQUAL_FATAL(span_adopt(&f.device.store.pool, x, group_of(0), 0, &span), 0);
    CU_ASSERT_EQUAL(store_adopt(&f.device.store, PAGE(&f.device.store, pages[0]), NULL), 0);
    CU_ASSERT_EQUAL(store_adopt(&f.device.store, PAGE(&f.device.store, pages[1]), NULL), -EEXIST);
    store_adopt_holds(&f.device.store, PAGE(&f.device.store, pages[0]));
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 1);
    CU_ASSERT_EQUAL(f.tenants[0]->page_bytes, 1024);
    CU_ASSERT_EQUAL(span->n_used, 1);
    CU_ASSERT_EQUAL(
        numbers_find(&f.device.store, f.tenants[0], &pool_slot(&f.device.store.pool, pages[0])->key),
        pages[0]);
    CU_ASSERT_EQUAL(fill(0, 0, 1), 0);
    CU_ASSERT_EQUAL(slots[0], pages[1]); /* used again */
    unhold(0, 1);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_extents_come_from_the_source),
    TEST(test_retry_while_an_extent_is_created),
    TEST(test_a_full_device_is_a_full_pool),
    TEST(test_lender_takes_an_extent_and_waits_for_its_own),
    TEST(test_held_borrower_is_reclaimed),
    TEST(test_retired_extent_is_destroyed_when_empty),
    TEST(test_empty_retired_extent_makes_room),
    TEST(test_retired_extent_is_not_reclaimed),
    TEST(test_reservations_survive_a_restart),
    TEST(test_a_retired_extent_stays_retired),
    TEST(test_two_pages_of_one_key),
    TEST_END,
};
