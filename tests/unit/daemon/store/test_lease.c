/* Leases: bitmaps, limits, expiry; every hold that was taken ends exactly once. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/journal.h"
#include "daemon/store/lease.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "lease";

enum { N = 12 };

static struct store_fixture f;
static struct journal journal;
static uint32_t slots[N];

/* Publishes N pages. Each has one hold without a lease, which teardown() ends. */
static void setup_limits(struct leases *l, const struct lease_limits *limits)
{
    store_fixture_init(&f, 1 << 20, 1 << 18, 1 << 16, UINT64_C(1) << 40);
    for (uint64_t n = 0; n < N; n++)
        slots[n] = store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, NULL);
    assert(journal_new(&journal, NULL) == 0);
    lease_init(l, &journal, f.tenants[0]->account, 7, limits);
}

static void setup(struct leases *l, uint32_t n_max)
{
    setup_limits(l, &(const struct lease_limits){n_max, 1000, 10000, 10000});
}

/* A lease of all pages, which have a hold for it. */
static uint64_t add(struct leases *l, const uint32_t *numbers)
{
    struct page_handle pages[N];

    numbers_resolve(&f.device.store, numbers, N, pages);
    CU_ASSERT_EQUAL_FATAL(lease_make_room(l, N, NULL), 0);
    return lease_add(l, pages, N);
}

static void hold_all(void)
{
    for (unsigned i = 0; i < N; i++)
        if (slots[i] != SLOT_NONE)
            store_hold(&f.device.store, PAGE(&f.device.store, slots[i]));
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
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[i]));
    }
    store_fixture_deinit(&f);
    journal_deinit(&journal);
}

/* The end of a session releases a lease that its process just asked to keep. */
static void test_release_of_kept(void)
{
    struct leases l;

    setup(&l, 100);
    hold_all();
    lease_keep(&l, add(&l, slots));
    lease_release_all(&l, &f.device.store);
    CU_ASSERT_EQUAL(l.n_held, 0);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(holds(i), 0);
    teardown(&l);
}

static void test_release_by_bitmap(void)
{
    static const uint8_t some[] = {0x05, 0x08}; /* items 0, 2, 11 */
    static const uint8_t beyond[] = {0x00, 0xf0, 0xff};
    struct leases l;
    uint64_t id;

    setup(&l, 100);
    hold_all();
    id = add(&l, slots);
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
    first = add(&l, slots);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, first, NULL, 0), 0);
    hold_all();
    second = add(&l, slots);
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
            ids[i] = add(&l, slots);
        }
        CU_ASSERT_EQUAL(lease_make_room(&l, 1, NULL), -EDQUOT);
        CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, ids[3], NULL, 0), 0);
        CU_ASSERT_EQUAL(lease_make_room(&l, 1, NULL), 0);
        teardown(&l);
    }
}

static void test_expiry_keeps_holds(void)
{
    struct leases l;
    uint64_t a;

    setup(&l, 100);
    hold_all();
    a = add(&l, slots);
    CU_ASSERT_EQUAL(lease_expire(&l), 1);
    CU_ASSERT_EQUAL(lease_expire(&l), 0);
    hold_all();
    (void) add(&l, slots);
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
    store_unhold(&f.device.store, PAGE(&f.device.store, slots[1]));
    id = add(&l, with_gap);
    CU_ASSERT_EQUAL(l.n_held, N - 1);
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, id, (const uint8_t[]){0x02}, 1), 0);
    CU_ASSERT_EQUAL(l.n_held, N - 1);
    teardown(&l);
}

/* ---- shares ---- */

/* Whether the next lease of @n pages is refused with a sentence that has @words. */
static void refuses(struct leases *l, uint32_t n, const char *words)
{
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(lease_make_room(l, n, &e), -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, words));
}

/* Released pages of a lease count until all are released, since the lease keeps its memory. */
static void test_limit_of_pages_of_a_session(void)
{
    struct leases l;
    uint64_t a;

    setup_limits(&l, &(const struct lease_limits){100, 100, 2 * N, 1000});
    hold_all();
    a = add(&l, slots);
    CU_ASSERT_EQUAL(lease_make_room(&l, N, NULL), 0);
    refuses(&l, N + 1, "this session");
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, a, (const uint8_t[]){0xfe, 0xff}, 2), 0);
    CU_ASSERT_EQUAL(l.n_held, 1);
    refuses(&l, N + 1, "this session");
    CU_ASSERT_EQUAL(lease_release(&l, &f.device.store, a, NULL, 0), 0);
    CU_ASSERT_EQUAL(lease_make_room(&l, 2 * N, NULL), 0);
    refuses(&l, 2 * N + 1, "this session");
    teardown(&l);
}

/* The sessions of a tenant share its limits; another tenant has its own. */
static void test_limits_of_a_tenant(void)
{
    const struct lease_limits limits = {100, 3, 1000, 2 * N + 1};
    struct leases l, same, other;

    setup_limits(&l, &limits);
    lease_init(&same, &journal, f.tenants[0]->account, 8, &limits);
    lease_init(&other, &journal, f.tenants[1]->account, 9, &limits);
    hold_all();
    (void) add(&l, slots);
    hold_all();
    (void) add(&same, slots);
    CU_ASSERT_EQUAL(lease_make_room(&l, 1, NULL), 0);
    refuses(&l, 2, "pages in its leases");
    CU_ASSERT_EQUAL(lease_make_room(&other, 2 * N + 1, NULL), 0);
    store_hold(&f.device.store, PAGE(&f.device.store, slots[0]));
    CU_ASSERT_EQUAL(lease_make_room(&same, 1, NULL), 0);
    (void) lease_add(&same, PAGE(&f.device.store, slots[0]), 1);
    refuses(&l, 0, "leases, the maximum");
    CU_ASSERT_EQUAL(f.tenants[0]->account->n_leases, 3);
    lease_release_all(&same, &f.device.store);
    CU_ASSERT_EQUAL(f.tenants[0]->account->n_leased, N);
    CU_ASSERT_EQUAL(lease_make_room(&l, N + 1, NULL), 0);
    lease_deinit(&same);
    lease_deinit(&other);
    teardown(&l);
    CU_ASSERT_EQUAL(journal.n_holds, 0);
}

/* When few cells are left, each tenant may have as many as then remain. */
static void test_share_of_the_journal(void)
{
    const struct lease_limits limits = {100, 100, 1000, 1000};
    struct leases l, other;

    setup_limits(&l, &limits);
    lease_init(&other, &journal, f.tenants[1]->account, 9, &limits);
    hold_all();
    (void) add(&l, slots);
    journal.n_holds += JOURNAL_HOLDS_MAX - N - 40;     /* of other tenants: 40 cells are left */
    CU_ASSERT_EQUAL(lease_make_room(&l, 14, NULL), 0); /* 26 of 26 */
    refuses(&l, 15, "all tenants left places");
    CU_ASSERT_EQUAL(lease_make_room(&other, 20, NULL), 0);
    refuses(&other, 21, "all tenants left places");
    refuses(&other, 41, "all tenants left places");
    journal.n_holds -= JOURNAL_HOLDS_MAX - N - 40;
    lease_deinit(&other);
    teardown(&l);
}

/* A session that keeps only its newest lease keeps a large table: tables of a tenant have a limit, too. */
static void test_limit_of_tables(void)
{
    const struct lease_limits limits = {64, 64, 10000, 10000};
    struct leases l, more[8];
    uint64_t ids[64];
    unsigned n = 0;

    setup_limits(&l, &limits);
    for (n = 0; n < 8; n++) {
        int r = 0;

        lease_init(&more[n], &journal, f.tenants[0]->account, 8 + n, &limits);
        for (unsigned i = 0; i < 64 - n && r == 0; i++) { /* the others have one lease each */
            r = lease_make_room(&more[n], 1, NULL);
            if (r < 0)
                break;
            store_hold(&f.device.store, PAGE(&f.device.store, slots[0]));
            ids[i] = lease_add(&more[n], PAGE(&f.device.store, slots[0]), 1);
        }
        if (r < 0) {
            CU_ASSERT_EQUAL(r, -EDQUOT);
            break;
        }
        for (unsigned i = 0; i + 1 < 64 - n; i++)
            CU_ASSERT_EQUAL(lease_release(&more[n], &f.device.store, ids[i], NULL, 0), 0);
    }
    CU_ASSERT_EQUAL(n, 2); /* two tables of 64 places, and a third of 16 */
    CU_ASSERT_EQUAL(f.tenants[0]->account->n_lease_places, 2 * 64 + 16);
    for (unsigned i = 0; i <= n; i++) {
        lease_release_all(&more[i], &f.device.store);
        lease_deinit(&more[i]);
    }
    CU_ASSERT_EQUAL(f.tenants[0]->account->n_lease_places, 0);
    teardown(&l);
}

const struct test_case test_cases[] = {
    TEST(test_limit_of_tables),
    TEST(test_release_of_kept),
    TEST(test_release_by_bitmap),
    TEST(test_ids_are_not_reused),
    TEST(test_limit),
    TEST(test_expiry_keeps_holds),
    TEST(test_items_without_page),
    TEST(test_limit_of_pages_of_a_session),
    TEST(test_limits_of_a_tenant),
    TEST(test_share_of_the_journal),
    TEST_END,
};
