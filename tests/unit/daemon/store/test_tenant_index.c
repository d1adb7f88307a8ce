/*
 * A tenant's index while it grows: no key is lost, no insertion copies the whole index, and memory per page
 * stays within bounds and counts for the quota. Keys that share homes fail alone.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/usage.h"
#include "daemon/store/evict.h"
#include "daemon/store/reserve.h"
#include "daemon/store/tenant_index.h"
#include "gpu/device.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "tenant_index";

enum { N = 90000, SLOT = 128 };

#define NO_LIMIT (UINT64_C(1) << 40)

static struct store_fixture f;
static uint32_t slots[N]; /* by number of the key; SLOT_NONE: dropped */

static void setup(uint64_t quota_bytes)
{
    store_fixture_init(&f, 16 << 20, 4 << 20, 64 << 10, quota_bytes);
    f.spaces[0].layout.slot_bytes[1] = SLOT;
    f.spaces[0].layout.page_bytes[1] = SLOT;
}

static void publish(uint64_t n)
{
    slots[n] = store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, NULL);
    assert(slots[n] != SLOT_NONE);
    store_unhold(&f.device.store, PAGE(&f.device.store, slots[n]));
}

static void drop(uint64_t n)
{
    store_drop(&f.device.store, PAGE(&f.device.store, slots[n]), GHOST_EVICTED);
    slots[n] = SLOT_NONE;
}

static void check_found(uint64_t n)
{
    struct chunk_key key = store_fixture_key(n);

    CU_ASSERT_EQUAL(numbers_find(&f.device.store, f.tenants[0], &key), slots[n]);
}

static void test_growth(void)
{
    const struct tenant *t;
    unsigned n_growths = 0, in_flight = 0;
    struct errmsg e = {""};
    uint64_t object;
    bool was_filling = false;

    setup(NO_LIMIT);
    t = f.tenants[0];
    object = t->index_object;
    for (uint64_t n = 0; n < N; n++) {
        publish(n);
        if (n % 7 == 3) {
            uint64_t gone = test_rand_below(n);

            if (slots[gone] != SLOT_NONE)
                drop(gone);
            check_found(gone);
        }
        check_found(n);
        check_found(test_rand_below(n + 1));
        in_flight += t->next_memory != NULL;
        if (t->index_object != object) {
            CU_ASSERT(was_filling);
            object = t->index_object;
            n_growths++;
        }
        was_filling = t->next_memory != NULL;
        /* at most 1 % of the keys above the load limit are inserted while the next index is filled */
        if (t->n_pages > 2 * TENANT_PAGES_FREE)
            CU_ASSERT(t->n_pages < index_capacity(&t->index) + index_capacity(&t->index) / 50);
        /* from 65536 entries on, indexes grow by a quarter: 32 / 0.64 bytes per page, and dropped pages */
        if (t->n_pages > 70000)
            CU_ASSERT(extent_bytes(t->index_memory) < t->n_pages * 53);
    }
    CU_ASSERT(n_growths >= 5);          /* 4096 to 65536 by doubling, then by a quarter */
    CU_ASSERT(in_flight > 65536 / 128); /* filled over many insertions */
    for (uint64_t n = 0; n < N; n++)
        check_found(n);
    if (!store_is_valid(&f.device.store, &e))
        CU_FAIL(e.text);
    store_fixture_deinit(&f);
}

/* ---- keys that share homes ---- */

/* Return: errno of the publication; *ret_slot is held. A refused slot is given back. */
static int publish_key(const struct chunk_key *key, uint32_t *ret_slot)
{
    struct errmsg e = {""};
    int r = numbers_reserve(&f.device.store, store_fixture_group(&f, 0, 0, 1), 0, ret_slot, &e);

    if (r < 0)
        return r;

    r = store_publish(&f.device.store, PAGE(&f.device.store, *ret_slot), key, 0, &e);
    CU_ASSERT_EQUAL(r < 0, e.text[0] != '\0');
    if (r < 0)
        store_discard(&f.device.store, PAGE(&f.device.store, *ret_slot));
    return r;
}

/* A key whose halves have these upper 32 bits. */
static struct chunk_key chosen_key(uint32_t first, uint32_t second, uint32_t id)
{
    const uint64_t words[2] = {(uint64_t) first << 32 | id, (uint64_t) second << 32 | id};
    struct chunk_key key;

    memcpy(key.bytes, words, sizeof(words));
    return key;
}

static void check_valid(void)
{
    struct errmsg e = {""};

    if (!store_is_valid(&f.device.store, &e))
        CU_FAIL(e.text);
}

/* One bucket of the first home and seven from the second on: 64 places, whatever the size of the index is. */
static void test_equal_homes(void)
{
    enum { PLACES = 64, REPEATS = 1000 };
    const struct tenant *t;
    uint32_t held[PLACES], slot;
    uint64_t object, used;
    struct chunk_key key;

    setup(NO_LIMIT);
    t = f.tenants[0];
    object = t->index_object;
    for (uint32_t i = 0; i < PLACES; i++) {
        key = chosen_key(0x12345678, 0x9abcdef0, i);
        CU_ASSERT_EQUAL_FATAL(publish_key(&key, &held[i]), 0);
    }
    used = tenant_used_bytes(t);
    for (uint32_t i = 0; i < REPEATS; i++) {
        key = chosen_key(0x12345678, 0x9abcdef0, PLACES + i % 3);
        CU_ASSERT_EQUAL(publish_key(&key, &slot), -ENOSPC);
        CU_ASSERT_EQUAL(numbers_find(&f.device.store, t, &key), SLOT_NONE);
    }
    CU_ASSERT(t->index_object == object && !t->next_memory && t->index_bytes == 0);
    CU_ASSERT_EQUAL(tenant_used_bytes(t), used);
    publish(1); /* other keys of the tenant find places */
    check_found(1);
    store_unhold(&f.device.store, PAGE(&f.device.store, held[9]));
    store_drop(&f.device.store, PAGE(&f.device.store, held[9]), GHOST_EVICTED);
    CU_ASSERT_EQUAL(publish_key(&key, &held[9]), 0); /* the place of a page that is gone */
    check_valid();
    for (uint32_t i = 0; i < PLACES; i++)
        store_unhold(&f.device.store, PAGE(&f.device.store, held[i]));
    store_fixture_deinit(&f);
}

/* Publishes until the present index is as full as it may be. Return: the number of the next key. */
static uint64_t fill_to_limit(uint64_t n)
{
    while (f.tenants[0]->n_slots < index_capacity(&f.tenants[0]->index))
        publish(n++);
    return n;
}

/*
 * Keys that all belong in one bucket of the larger index, and in two neighbours of the present one, fit only
 * the present one: the larger one is given up, once for as many pages as the tenant has.
 */
static void test_larger_index_does_not_help(void)
{
    enum { EVIL = 72 };
    uint32_t held[EVIL], homes[2] = {0};
    uint64_t larger, object, n;
    struct tenant *t;

    setup(NO_LIMIT);
    t = f.tenants[0];
    object = t->index_object;
    larger = (index_object_bytes(2 * index_capacity(&t->index)) - 128) / 256;
    for (uint64_t b = 1; b < larger && homes[1] == 0;
         b++) { /* the bucket has the border of two present ones */
        uint64_t low = (b << 32) / larger + 1, high = ((b + 1) << 32) / larger - 1;

        if ((low * t->index.n_buckets) >> 32 != (high * t->index.n_buckets) >> 32) {
            homes[0] = (uint32_t) low;
            homes[1] = (uint32_t) high;
        }
    }
    CU_ASSERT_NOT_EQUAL_FATAL(homes[1], 0);
    for (uint32_t i = 0; i < EVIL; i++) {
        struct chunk_key key = chosen_key(homes[i & 1], (homes[i & 1] + 0x80000000u), i);

        CU_ASSERT_EQUAL_FATAL(publish_key(&key, &held[i]), 0);
    }
    n = fill_to_limit(0);
    while (t->index_pause == 0)
        publish(n++);
    CU_ASSERT(t->index_object == object && !t->next_memory && t->index_bytes == 0);
    check_valid();
    for (uint32_t i = 0; i < EVIL; i++) {
        store_unhold(&f.device.store, PAGE(&f.device.store, held[i]));
        store_drop(&f.device.store, PAGE(&f.device.store, held[i]), GHOST_EVICTED);
    }
    for (uint64_t i = 0; i < 2 * t->n_slots && t->index_object == object; i++)
        publish(n++);
    CU_ASSERT_EQUAL(t->index_object, object + 1);
    check_valid();
    store_fixture_deinit(&f);
}

/* ---- memory ---- */

/* One step allocates, and gives back, at most 16 pages; clients that keep the old object keep one page. */
static void test_memory_in_steps(void)
{
    enum { STEP = 64 << 10 };
    uint64_t n, allocated = 0, object;
    const struct tenant *t;
    int kept;

    setup(NO_LIMIT);
    t = f.tenants[0];
    n = fill_to_limit(0);
    object = t->index_object;
    kept = dup(extent_fd(t->index_memory));
    CU_ASSERT(usage_of_fd(kept) > 4 * 4096);
    while (t->index_object == object) {
        uint64_t now = 0;

        publish(n++);
        if (t->next_memory)
            now = usage_of_fd(extent_fd(t->next_memory));
        CU_ASSERT(now <= allocated + 2 * STEP); /* the steps of the reservation and of the insertion */
        allocated = now;
    }
    CU_ASSERT_EQUAL(t->index_bytes, extent_bytes(t->index_memory)); /* the first object is free */
    publish(n++);
    publish(n++);
    CU_ASSERT_EQUAL(usage_of_fd(kept), 4096); /* clients read there that the index was moved */
    n = fill_to_limit(n);
    publish(n++);
    CU_ASSERT_EQUAL(usage_of_fd(kept), 0);
    (void) close(kept);
    check_valid();
    store_fixture_deinit(&f);
}

/* Without room for a larger index, the oldest pages make room in the present one. */
static void test_growth_within_quota(void)
{
    const uint64_t quota = 5200 * SLOT + TENANT_PAGES_FREE / 2;
    uint64_t n, object, capacity;
    struct tenant *t;
    int err;

    setup(quota);
    t = f.tenants[0];
    n = fill_to_limit(0);
    object = t->index_object;
    capacity = index_capacity(&t->index);
    CU_ASSERT(tenant_room_bytes(t) > 100 * SLOT); /* the quota has room for pages, not for the index */
    for (unsigned i = 0; i < 1000; i++) {
        publish(n++);
        CU_ASSERT(t->n_slots <= capacity && tenant_used_bytes(t) <= quota);
    }
    CU_ASSERT(t->index_object == object && !t->next_memory && t->counters.evictions == 1000);
    check_valid();
    for (uint64_t i = 0; i < n; i++) {
        struct chunk_key key = store_fixture_key(i);

        slots[i] = numbers_find(&f.device.store, t, &key);
        if (slots[i] != SLOT_NONE)
            store_hold(&f.device.store, PAGE(&f.device.store, slots[i]));
    }
    CU_ASSERT_EQUAL(store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, &err), SLOT_NONE);
    CU_ASSERT_EQUAL(err, -EDQUOT);
    t->quota_bytes = NO_LIMIT;
    CU_ASSERT_NOT_EQUAL(store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, &err), SLOT_NONE);
    CU_ASSERT_PTR_NOT_NULL(t->next_memory);
    check_valid();
    for (uint64_t i = 0; i <= n; i++) {
        struct chunk_key key = store_fixture_key(i);
        uint32_t slot = numbers_find(&f.device.store, t, &key);

        if (slot != SLOT_NONE)
            store_unhold(&f.device.store, PAGE(&f.device.store, slot));
    }
    store_fixture_deinit(&f);
}

/* With room reserved for all keys, no other object is created. */
static void test_reserve(void)
{
    const struct tenant *t;
    uint64_t object;

    setup(NO_LIMIT);
    t = f.tenants[0];
    CU_ASSERT_EQUAL(tenant_index_reserve(f.tenants[0], 20000, NULL), 0);
    object = t->index_object;
    for (uint64_t n = 0; n < 20000; n++)
        publish(n);
    CU_ASSERT(t->index_object == object && !t->next_memory);
    CU_ASSERT(extent_bytes(t->index_memory) < 20000 * 46); /* 40 bytes, an eighth more, a page */
    for (uint64_t n = 0; n < 20000; n++)
        check_found(n);
    store_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_growth),
    TEST(test_equal_homes),
    TEST(test_larger_index_does_not_help),
    TEST(test_memory_in_steps),
    TEST(test_growth_within_quota),
    TEST(test_reserve),
    TEST_END,
};
