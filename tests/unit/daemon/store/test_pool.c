/*
 * External memory in the pool: the sessions whose pages may use it, that other tenants cannot take it, and
 * its pages after its client ended. The pool has 4 extents of 256 KiB, cut in units of 64 KiB. Pages have
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
#include "daemon/store/share.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "pool";

enum {
    EXTENT = 256 << 10,
    PER_EXTENT = 256,
    LENDER = 3,
    NEIGHBOUR = 4,
    STRANGER = 5,
    PID = 100,
    OTHER_PID = 200
};

static struct store_fixture f;
static uint32_t slots[2 * PER_EXTENT];
static uint64_t next_key;

static int take(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    int fd;

    assert(ctx == &f);
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? store_fixture_memory(&f, fd, ret) : fail(e, -EIO, "/dev/null");
}

static const struct pool_source source = {take, &f};

static struct store *store(void)
{
    return &f.device.store;
}

static void setup(void)
{
    store_fixture_init(&f, 4 * EXTENT, EXTENT, 64 << 10, UINT64_C(1) << 40);
    store()->lendable_percent = 100;
    store()->pool.source = &source;
    store()->pool.on_gpu = true;
}

static void valid(void)
{
    struct errmsg e = {""};

    if (!store_is_valid(store(), &e))
        CU_FAIL_FATAL(e.text);
}

static void teardown(void)
{
    valid();
    store_fixture_deinit(&f);
}

static int lend(unsigned tenant, struct pool_extent **ret)
{
    struct pool_external lent = {.session = LENDER, .pid = PID};

    lent.handle[0] = (uint8_t) next_key++;
    return pool_extent_register(&store()->pool, f.tenants[tenant], &lent, &(struct span_owner){.place = 1},
                                ret, NULL);
}

static struct group *group_of(unsigned tenant)
{
    return store_fixture_group(&f, tenant, 0, 1);
}

/* The extent that a page of this session gets. */
static struct pool_extent *place_of(uint32_t session, pid_t pid, uint32_t *ret_slot)
{
    CU_ASSERT_EQUAL_FATAL(numbers_reserve(store(), group_of(0), session, pid, ret_slot, NULL), 0);
    return pool_handle(&store()->pool, *ret_slot).span->extent;
}

/* Publishes @n pages of tenant 0. The fixture reserves them for process 1. */
static void publish(unsigned n)
{
    int r = 0;

    for (unsigned i = 0; i < n; i++)
        slots[i] = store_fixture_publish(&f, group_of(0), 1000 + i, &r);
    CU_ASSERT_EQUAL_FATAL(r, 0);
}

static void test_used_except_by_other_sessions_of_its_process(void)
{
    struct pool_extent *x = NULL, *own;
    uint32_t of_lender, of_stranger, of_neighbour, of_daemon, again;

    setup();
    CU_ASSERT_EQUAL_FATAL(lend(0, &x), 0);
    CU_ASSERT_TRUE(x->gpu_fd < 0 && !x->memory);
    CU_ASSERT_EQUAL(pool_external_extents(&store()->pool), 1);
    CU_ASSERT_PTR_EQUAL(place_of(LENDER, PID, &of_lender), x);
    CU_ASSERT_PTR_EQUAL(place_of(STRANGER, OTHER_PID, &of_stranger), x);
    /* the span has room, but this process cannot open its own memory */
    own = place_of(NEIGHBOUR, PID, &of_neighbour);
    CU_ASSERT_PTR_NOT_EQUAL(own, x);
    CU_ASSERT_TRUE(own->gpu_fd >= 0);
    CU_ASSERT_PTR_EQUAL(place_of(NEIGHBOUR, PID, &again), own);
    CU_ASSERT_PTR_EQUAL(place_of(LENDER, 0, &of_daemon), own); /* pid 0: the mover writes the page */
    valid();
    store_discard(store(), PAGE(store(), of_daemon));
    store_discard(store(), PAGE(store(), of_lender));
    store_discard(store(), PAGE(store(), of_stranger));
    store_discard(store(), PAGE(store(), of_neighbour));
    store_discard(store(), PAGE(store(), again));
    teardown();
}

static void test_it_counts_in_the_pool(void)
{
    struct pool_extent *x = NULL;

    setup();
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(lend(0, &x), 0);
    valid();
    CU_ASSERT_FALSE(share_may_register(store(), f.tenants[0]));
    CU_ASSERT_EQUAL(lend(0, &x), -ENOSPC);
    CU_ASSERT_EQUAL(f.tenants[0]->n_extents, 4);
    teardown();
}

/* External memory, which cannot be reclaimed, may not use even the lendable part of other guarantees. */
static void test_guarantees_of_others_stay(void)
{
    struct pool_extent *x = NULL;

    setup();
    f.tenants[1]->guarantee_bytes = 2 * EXTENT;
    CU_ASSERT_TRUE(share_may_register(store(), f.tenants[0]));
    CU_ASSERT_EQUAL(lend(0, &x), 0);
    CU_ASSERT_TRUE(share_may_register(store(), f.tenants[0]));
    CU_ASSERT_EQUAL(lend(0, &x), 0);
    CU_ASSERT_FALSE(share_may_register(store(), f.tenants[0]));
    CU_ASSERT_TRUE(share_may_grow(store(), f.tenants[0])); /* an extent that can be reclaimed */
    CU_ASSERT_TRUE(share_may_register(store(), f.tenants[1]));
    teardown();
}

/* A tenant below its guarantee never takes or reclaims external memory of a borrower, used or not. */
static void test_never_taken_or_reclaimed(void)
{
    struct pool_extent *x = NULL;
    uint32_t slot = 77;

    setup();
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(lend(0, &x), 0);
    f.tenants[1]->guarantee_bytes = EXTENT; /* raised after the pool was full */
    CU_ASSERT_EQUAL(numbers_reserve(store(), group_of(1), 9, 9, &slot, NULL), -ENOSPC);
    publish(1);
    CU_ASSERT_EQUAL(numbers_reserve(store(), group_of(1), 9, 9, &slot, NULL), -ENOSPC);
    store_unhold(store(), PAGE(store(), slots[0]));
    CU_ASSERT_EQUAL(numbers_reserve(store(), group_of(1), 9, 9, &slot, NULL), -ENOSPC);
    CU_ASSERT_EQUAL(slot, 77);
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 1);
    CU_ASSERT_EQUAL(store()->pool.n_extents, 4);
    valid();
    store_drop(store(), PAGE(store(), slots[0]), GHOST_EVICTED);
    teardown();
}

static void test_pages_after_its_client_ended(void)
{
    struct pool_extent *x = NULL;
    struct chunk_key held = store_fixture_key(1000), unheld = store_fixture_key(1001);
    struct page_handle found = {.number = 77};
    uint32_t slot;
    uint64_t id;

    setup();
    CU_ASSERT_EQUAL_FATAL(lend(0, &x), 0);
    id = x->id;
    publish(10);
    for (unsigned i = 1; i < 10; i++)
        store_unhold(store(), PAGE(store(), slots[i]));
    CU_ASSERT_TRUE(store_page_is_whole(store(), PAGE(store(), slots[0])));
    retire_external(store(), x);
    valid();
    CU_ASSERT_EQUAL(f.tenants[0]->n_pages, 1);
    CU_ASSERT_FALSE(store_page_is_whole(store(), PAGE(store(), slots[0])));
    CU_ASSERT_FALSE(pool_slot(&store()->pool, slots[0])->unchecked); /* no check is needed */
    CU_ASSERT_EQUAL(store_find_whole(store(), f.tenants[0], &held, &found, NULL), -EAGAIN);
    CU_ASSERT_EQUAL(found.number, 77);
    CU_ASSERT_EQUAL(store_find_whole(store(), f.tenants[0], &unheld, &found, NULL), 0);
    CU_ASSERT_PTR_NULL(found.slot);
    CU_ASSERT_PTR_NOT_EQUAL(place_of(STRANGER, OTHER_PID, &slot), x);
    store_discard(store(), PAGE(store(), slot));
    retire_tick(store());
    CU_ASSERT_PTR_NOT_NULL(pool_extent_find(&store()->pool, id));
    store_unhold(store(), PAGE(store(), slots[0]));
    retire_tick(store());
    CU_ASSERT_PTR_NULL(pool_extent_find(&store()->pool, id));
    CU_ASSERT_EQUAL(store_find_whole(store(), f.tenants[0], &held, &found, NULL), 0);
    CU_ASSERT_PTR_NULL(found.slot);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_used_except_by_other_sessions_of_its_process),
    TEST(test_it_counts_in_the_pool),
    TEST(test_guarantees_of_others_stay),
    TEST(test_never_taken_or_reclaimed),
    TEST(test_pages_after_its_client_ended),
    TEST_END,
};
