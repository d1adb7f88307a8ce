/*
 * The store under random operations, compared with an independent model: plain lists of keys, owners, holds
 * and sizes, without extents, spans or queues. store_is_valid() runs after every step, too.
 */
#include "daemon/store/evict_queue.h"
#include "daemon/store/reserve.h"
#include "daemon/store/retire.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/loop/usage.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"
#include "gpu/device.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "store";

enum { PAGES_MAX = 4096, CLIENTS = 5, KEYS = 600 };

enum { UNIT = 16 << 10, EXTENT = 64 << 10, POOL = 6 * EXTENT };

/* ---- the model ---- */

struct model_page {
    bool reserved, committed;
    unsigned tenant, space, page_class;
    uint64_t key;
    uint32_t slot;
    uint64_t generation;
    unsigned holds[CLIENTS];
    int reserved_by;
};

static struct model_page pages[PAGES_MAX];
static unsigned n_pages;
static unsigned n_refused;
static struct store_fixture f;

static unsigned holds_of(const struct model_page *p)
{
    unsigned n = 0;

    for (unsigned i = 0; i < CLIENTS; i++)
        n += p->holds[i];
    return n;
}

static void forget(unsigned i)
{
    pages[i] = pages[--n_pages];
}

static struct model_page *find_key(unsigned tenant, uint64_t key)
{
    for (unsigned i = 0; i < n_pages; i++)
        if (pages[i].committed && pages[i].tenant == tenant && pages[i].key == key)
            return &pages[i];
    return NULL;
}

/* Removes evicted pages from the model. Only unheld pages may be evicted. */
static void learn_evictions(void)
{
    for (unsigned i = 0; i < n_pages;) {
        struct model_page *p = &pages[i];
        struct chunk_key key = store_fixture_key(p->key);

        if (!p->committed || numbers_find(&f.device.store, f.tenants[p->tenant], &key) == p->slot) {
            i++;
            continue;
        }
        CU_ASSERT_EQUAL_FATAL(holds_of(p), 0);
        forget(i);
    }
}

static void check_pages(void)
{
    uint64_t bytes[FIXTURE_TENANTS] = {0}, held[FIXTURE_TENANTS] = {0};

    for (unsigned i = 0; i < n_pages; i++) {
        const struct model_page *p = &pages[i];
        const struct slot *slot = pool_slot(&f.device.store.pool, p->slot);
        size_t slot_bytes = f.spaces[p->space].layout.slot_bytes[p->page_class];

        CU_ASSERT_FATAL(slot && slot->generation == p->generation);
        CU_ASSERT_EQUAL_FATAL(slot->state, p->committed ? SLOT_COMMITTED : SLOT_RESERVED);
        CU_ASSERT_EQUAL_FATAL(slot->holds, holds_of(p));
        /* the bytes of the page are unchanged: no other page got the same slot */
        CU_ASSERT_EQUAL_FATAL(
            memcmp(pool_slot_data(&f.device.store.pool, PAGE(&f.device.store, p->slot)), &p->generation, 8),
            0);
        CU_ASSERT_EQUAL_FATAL(
            memcmp(pool_slot_data(&f.device.store.pool, PAGE(&f.device.store, p->slot)) + slot_bytes - 8,
                   &p->generation, 8),
            0);
        CU_ASSERT_FATAL(pool_handle(&f.device.store.pool, p->slot).span->extent->tenant ==
                        f.tenants[p->tenant]);
        bytes[p->tenant] += slot_bytes;
        held[p->tenant] += p->reserved || holds_of(p) > 0 ? slot_bytes : 0;
    }
    for (unsigned t = 0; t < FIXTURE_TENANTS; t++) {
        CU_ASSERT_EQUAL_FATAL(f.tenants[t]->page_bytes, bytes[t]);
        CU_ASSERT_EQUAL_FATAL(f.tenants[t]->held_bytes, held[t]);
    }
}

static void check_all(void)
{
    struct errmsg e = {""};

    learn_evictions();
    check_pages();
    if (!store_is_valid(&f.device.store, &e)) {
        fprintf(stderr, "%s\n", e.text);
        CU_FAIL_FATAL("store invariant");
    }
}

/* ---- steps ---- */

static void step_reserve(void)
{
    struct model_page p = {
        .reserved = true,
        .tenant = (unsigned) test_rand_below(FIXTURE_TENANTS),
        .space = (unsigned) test_rand_below(FIXTURE_SPACES),
        .page_class = test_rand_below(4) > 0,
        .reserved_by = (int) test_rand_below(CLIENTS),
    };
    struct group *g = store_fixture_group(&f, p.tenant, p.space, p.page_class);
    size_t slot_bytes = g->slot_bytes;
    uint64_t before = f.serials.generation;
    struct errmsg e = {""};
    int r = numbers_reserve(&f.device.store, g, 0, &p.slot, &e);

    if (r < 0) {
        CU_ASSERT_FATAL(r == -ENOSPC || r == -EDQUOT);
        CU_ASSERT_FATAL(e.text[0] != '\0');
        n_refused++;
        learn_evictions();
        if (r == -EDQUOT) { /* right only if pages that cannot be evicted leave no room */
            CU_ASSERT_FATAL(f.tenants[p.tenant]->held_bytes + slot_bytes > f.tenants[p.tenant]->quota_bytes ||
                            share_is_at_limit(&f.device.store, f.tenants[p.tenant]));
        }
        return;
    }
    p.generation = pool_slot(&f.device.store.pool, p.slot)->generation;
    CU_ASSERT_FATAL(p.generation > before);
    memcpy(pool_slot_data(&f.device.store.pool, PAGE(&f.device.store, p.slot)), &p.generation, 8);
    memcpy(pool_slot_data(&f.device.store.pool, PAGE(&f.device.store, p.slot)) + slot_bytes - 8,
           &p.generation, 8);
    assert(n_pages < PAGES_MAX);
    pages[n_pages++] = p;
}

static struct model_page *pick(bool reserved)
{
    unsigned start = n_pages ? (unsigned) test_rand_below(n_pages) : 0;

    for (unsigned i = 0; i < n_pages; i++)
        if (pages[(start + i) % n_pages].reserved == reserved)
            return &pages[(start + i) % n_pages];
    return NULL;
}

static void step_commit(void)
{
    struct model_page *p = pick(true), *present;
    uint64_t n = test_rand_below(KEYS);
    struct chunk_key key = store_fixture_key(n);

    if (!p)
        return;
    present = find_key(p->tenant, n);
    CU_ASSERT_EQUAL_FATAL(numbers_find(&f.device.store, f.tenants[p->tenant], &key),
                          present ? present->slot : SLOT_NONE);
    if (present) { /* the first page stays */
        present->holds[p->reserved_by]++;
        store_hold(&f.device.store, PAGE(&f.device.store, present->slot));
        store_discard(&f.device.store, PAGE(&f.device.store, p->slot));
        forget((unsigned) (p - pages));
        return;
    }
    CU_ASSERT_EQUAL_FATAL(store_publish(&f.device.store, PAGE(&f.device.store, p->slot), &key, 0, NULL), 0);
    p->reserved = false;
    p->committed = true;
    p->key = n;
    p->holds[p->reserved_by] = 1;
}

static void step_abort(void)
{
    struct model_page *p = pick(true);

    if (!p)
        return;
    store_discard(&f.device.store, PAGE(&f.device.store, p->slot));
    forget((unsigned) (p - pages));
}

static void step_lease(void)
{
    struct model_page *p = pick(false);

    if (!p)
        return;
    p->holds[test_rand_below(CLIENTS)]++;
    store_hold(&f.device.store, PAGE(&f.device.store, p->slot));
    evict_queue_note_use(pool_slot(&f.device.store.pool, p->slot));
}

static void step_release(void)
{
    struct model_page *p = pick(false);
    unsigned client = (unsigned) test_rand_below(CLIENTS);

    if (!p || p->holds[client] == 0)
        return;
    p->holds[client]--;
    store_unhold(&f.device.store, PAGE(&f.device.store, p->slot));
}

static void die(int client)
{
    for (unsigned i = 0; i < n_pages;) {
        struct model_page *p = &pages[i];

        for (; p->holds[client] > 0; p->holds[client]--)
            store_unhold(&f.device.store, PAGE(&f.device.store, p->slot));
        if (p->reserved && p->reserved_by == client) {
            store_discard(&f.device.store, PAGE(&f.device.store, p->slot));
            forget(i);
        } else {
            i++;
        }
    }
}

static void run_steps(unsigned n_steps, uint64_t quota)
{
    store_fixture_init(&f, POOL, EXTENT, UNIT, quota);
    n_pages = n_refused = 0;
    for (unsigned i = 0; i < n_steps; i++) {
        uint64_t dice = test_rand_below(1000);

        if (dice < 330)
            step_reserve();
        else if (dice < 620)
            step_commit();
        else if (dice < 660)
            step_abort();
        else if (dice < 760)
            step_lease();
        else if (dice < 990)
            step_release();
        else
            die((int) test_rand_below(CLIENTS));
        check_all();
    }
    CU_ASSERT(n_refused > 10); /* else the test never reached the limit */
    CU_ASSERT(f.tenants[0]->counters.evictions + f.tenants[1]->counters.evictions > 100);
    for (int c = 0; c < CLIENTS; c++)
        die(c);
    check_all();
    store_fixture_deinit(&f);
}

static void test_random_work_full_pool(void)
{
    run_steps(4000, UINT64_C(1) << 40);
}

static void test_random_work_small_quota(void)
{
    run_steps(4000, 100 << 10);
}

/* ---- single rules ---- */

/* S3-FIFO: pages found twice survive a scan of pages that are used once. */
static void test_scan_does_not_flush_popular_pages(void)
{
    enum { POPULAR = 20 };
    struct group *g;
    unsigned left = 0;

    store_fixture_init(&f, POOL, EXTENT, UNIT, UINT64_C(1) << 40);
    g = store_fixture_group(&f, 0, 0, 1);
    for (uint64_t n = 0; n < POPULAR; n++) {
        uint32_t slot = store_fixture_publish(&f, g, n, NULL);

        store_unhold(&f.device.store, PAGE(&f.device.store, slot));
        for (int i = 0; i < EVICT_PROMOTE_USES; i++) {
            store_hold(&f.device.store, PAGE(&f.device.store, slot));
            evict_queue_note_use(pool_slot(&f.device.store.pool, slot));
            store_unhold(&f.device.store, PAGE(&f.device.store, slot));
        }
    }
    for (uint64_t n = 1000; n < 3000; n++) /* several times the pool's size */
        store_unhold(&f.device.store, PAGE(&f.device.store, store_fixture_publish(&f, g, n, NULL)));
    for (uint64_t n = 0; n < POPULAR; n++) {
        struct chunk_key key = store_fixture_key(n);

        left += numbers_find(&f.device.store, f.tenants[0], &key) != SLOT_NONE;
    }
    CU_ASSERT_EQUAL(left, POPULAR);
    CU_ASSERT(f.tenants[0]->counters.evictions > 1000);
    store_fixture_deinit(&f);
}

/* A page that is stored again soon after its eviction enters the main queue. */
static void test_ghost_readmits_to_main(void)
{
    struct chunk_key key = store_fixture_key(0);
    struct group *g;
    uint32_t slot;

    store_fixture_init(&f, POOL, EXTENT, UNIT, UINT64_C(1) << 40);
    g = store_fixture_group(&f, 0, 0, 1);
    slot = store_fixture_publish(&f, g, 0, NULL);
    store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    CU_ASSERT_EQUAL(g->small_queue.n, 1);
    store_drop(&f.device.store, PAGE(&f.device.store, slot), GHOST_EVICTED);
    CU_ASSERT_EQUAL(ghosts_find(&f.tenants[0]->ghosts, &key), GHOST_EVICTED);
    slot = store_fixture_publish(&f, g, 0, NULL);
    CU_ASSERT_EQUAL(ghosts_find(&f.tenants[0]->ghosts, &key), GHOST_NONE);
    store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    CU_ASSERT_EQUAL(g->main_queue.n, 1);
    store_fixture_deinit(&f);
}

/* A page that was evicted before more others than there are pages is as good as new. */
static void test_old_ghost_does_not_readmit(void)
{
    struct group *g;
    uint32_t slot;

    store_fixture_init(&f, POOL, EXTENT, UNIT, UINT64_C(1) << 40);
    g = store_fixture_group(&f, 0, 0, 1);
    for (uint64_t n = 0; n < 4; n++) {
        slot = store_fixture_publish(&f, g, n, NULL);
        store_unhold(&f.device.store, PAGE(&f.device.store, slot));
        store_drop(&f.device.store, PAGE(&f.device.store, slot), GHOST_EVICTED);
    }
    slot = store_fixture_publish(&f, g, 2, NULL); /* no page is left, and one was evicted since */
    store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    CU_ASSERT(g->small_queue.n == 1 && g->main_queue.n == 0);
    slot = store_fixture_publish(&f, g, 3, NULL); /* the last one */
    store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    CU_ASSERT(g->small_queue.n == 1 && g->main_queue.n == 1);
    store_fixture_deinit(&f);
}

/* A new table must be able to take over a full pool from an old table without held pages. */
static void test_new_space_takes_over(void)
{
    struct group *old, *new;
    unsigned n_new = 0;

    store_fixture_init(&f, POOL, EXTENT, UNIT, UINT64_C(1) << 40);
    old = store_fixture_group(&f, 0, 0, 1);
    new = store_fixture_group(&f, 0, 1, 1);
    for (uint64_t n = 0; n < 1000; n++)
        store_unhold(&f.device.store, PAGE(&f.device.store, store_fixture_publish(&f, old, n, NULL)));
    CU_ASSERT(old->n_used > 300);
    for (uint64_t n = 10000; n < 10300; n++)
        n_new += store_fixture_publish(&f, new, n, NULL) != SLOT_NONE; /* held, so not evicted */
    /* 8 slots of 2176 bytes take 2 units, which hold 15; 6 extents of 4 units: 12 x 15 */
    CU_ASSERT_EQUAL(n_new, 180);
    CU_ASSERT_EQUAL(old->n_used, 0);
    for (uint64_t n = 10000; n < 10300; n++) {
        struct chunk_key key = store_fixture_key(n);
        uint32_t slot = numbers_find(&f.device.store, f.tenants[0], &key);

        if (slot != SLOT_NONE)
            store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    }
    store_fixture_deinit(&f);
}

/* One tenant fills the pool with unheld pages; another one still gets its share. */
static void test_tenants_share_the_pool(void)
{
    struct group *a, *b;
    struct errmsg e;

    store_fixture_init(&f, POOL, EXTENT, UNIT, UINT64_C(1) << 40);
    a = store_fixture_group(&f, 0, 0, 1);
    b = store_fixture_group(&f, 1, 0, 1);
    for (uint64_t n = 0; n < 1000; n++)
        store_unhold(&f.device.store, PAGE(&f.device.store, store_fixture_publish(&f, a, n, NULL)));
    CU_ASSERT_EQUAL(f.device.store.pool.n_extents, 6);
    for (uint64_t n = 0; n < 1000; n++)
        store_unhold(&f.device.store, PAGE(&f.device.store, store_fixture_publish(&f, b, n, NULL)));
    CU_ASSERT(store_is_valid(&f.device.store, &e));
    /* B takes extents until both tenants have the same number: 3 of 6 */
    CU_ASSERT_EQUAL(b->n_used, 3 * EXTENT / 1024);
    CU_ASSERT_EQUAL(a->n_used, 3 * EXTENT / 1024);
    store_fixture_deinit(&f);
}

static void test_page_larger_than_an_extent(void)
{
    struct errmsg e = {""};
    struct group *g;
    uint32_t slot = 77;

    store_fixture_init(&f, 2 * UNIT, UNIT, UNIT, UINT64_C(1) << 40);
    g = store_fixture_group(&f, 0, 2, 1); /* 36 KiB in extents of 16 KiB */
    CU_ASSERT_EQUAL(numbers_reserve(&f.device.store, g, 0, &slot, &e), -EFBIG);
    CU_ASSERT_EQUAL(slot, 77);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "--extent-bytes"));
    store_fixture_deinit(&f);
}

static void test_nonsense_slot_numbers(void)
{
    struct group *g;
    uint32_t slot;

    store_fixture_init(&f, POOL, EXTENT, UNIT, UINT64_C(1) << 40);
    g = store_fixture_group(&f, 0, 0, 1);
    slot = store_fixture_publish(&f, g, 1, NULL);
    CU_ASSERT_PTR_NULL(pool_slot(&f.device.store.pool, SLOT_NONE));
    CU_ASSERT_PTR_NULL(pool_slot(&f.device.store.pool, slot + 1)); /* never used */
    for (int i = 0; i < 100000; i++) {
        uint32_t n = (uint32_t) test_rand() >> test_rand_below(32);

        CU_ASSERT((pool_slot(&f.device.store.pool, n) != NULL) == (n == slot));
    }
    store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    store_fixture_deinit(&f);
}

/* The records of a span's slots take memory as long as the span is there. */
static void test_records_are_given_back(void)
{
    enum { N = 8000 };
    static uint32_t slots[N];
    struct group *g;
    uint64_t used;
    int fd;

    store_fixture_init(&f, 4 << 20, 4 << 20, 2 << 20, UINT64_C(1) << 40);
    f.spaces[0].layout.slot_bytes[1] = f.spaces[0].layout.page_bytes[1] = SLOT_ALIGN;
    g = store_fixture_group(&f, 0, 0, 1);
    for (uint64_t n = 0; n < N; n++)
        slots[n] = store_fixture_publish(&f, g, n, NULL);
    fd = f.device.store.pool.extents[0]->records.fd;
    used = usage_of_fd(fd);
    CU_ASSERT(used >= N * sizeof(struct slot));
    for (unsigned n = 0; n < N; n++) {
        store_unhold(&f.device.store, PAGE(&f.device.store, slots[n]));
        store_drop(&f.device.store, PAGE(&f.device.store, slots[n]), GHOST_EVICTED);
    }
    CU_ASSERT(usage_of_fd(fd) <= used - N * sizeof(struct slot) + 2 * POOL_PAGE_BYTES);
    slots[0] = store_fixture_publish(&f, g, 1, NULL); /* the same units again */
    CU_ASSERT(store_is_valid(&f.device.store, NULL));
    store_unhold(&f.device.store, PAGE(&f.device.store, slots[0]));
    store_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_records_are_given_back),
    TEST(test_random_work_full_pool),
    TEST(test_random_work_small_quota),
    TEST(test_scan_does_not_flush_popular_pages),
    TEST(test_ghost_readmits_to_main),
    TEST(test_old_ghost_does_not_readmit),
    TEST(test_new_space_takes_over),
    TEST(test_tenants_share_the_pool),
    TEST(test_page_larger_than_an_extent),
    TEST(test_nonsense_slot_numbers),
    TEST_END,
};
