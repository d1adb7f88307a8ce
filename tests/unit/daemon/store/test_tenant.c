/*
 * A tenant's index while it grows: no key is lost, no insertion copies the whole index, and memory per page
 * stays within bounds.
 */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/device.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "tenant";

enum { N = 90000, SLOT = 128 };

static struct store_fixture f;
static uint32_t slots[N]; /* by number of the key; SLOT_NONE: dropped */

static void setup(void)
{
    store_fixture_init(&f, 16 << 20, 4 << 20, 64 << 10, UINT64_C(1) << 40);
    f.spaces[0].layout.slot_bytes[1] = SLOT;
    f.spaces[0].layout.page_bytes[1] = SLOT;
}

static void publish(uint64_t n)
{
    slots[n] = store_fixture_publish(&f, store_fixture_group(&f, 0, 0, 1), n, NULL);
    assert(slots[n] != SLOT_NONE);
    store_unhold(&f.device.store, slots[n]);
}

static void drop(uint64_t n)
{
    store_drop(&f.device.store, slots[n], GHOST_EVICTED);
    slots[n] = SLOT_NONE;
}

static void check_found(uint64_t n)
{
    struct chunk_key key = store_fixture_key(n);

    CU_ASSERT_EQUAL(store_find(&f.device.store, f.tenants[0], &key), slots[n]);
}

static void test_growth(void)
{
    const struct tenant *t;
    unsigned n_growths = 0, in_flight = 0;
    struct errmsg e = {""};
    uint64_t object;
    bool was_filling = false;

    setup();
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
            CU_ASSERT(was_filling || n < 2048); /* a small index is copied in one or two steps */
            object = t->index_object;
            n_growths++;
        }
        was_filling = t->next_memory != NULL;
        /* at most 1 % of the keys above the load limit are inserted while the next index is filled */
        if (t->n_pages > 4096)
            CU_ASSERT(t->n_pages < index_capacity(&t->index) + index_capacity(&t->index) / 50);
        /* from 65536 entries on, indexes grow by a quarter: 32 / 0.64 bytes per page, and dropped pages */
        if (t->n_pages > 70000)
            CU_ASSERT(extent_bytes(t->index_memory) < t->n_pages * 53);
    }
    CU_ASSERT(n_growths >= 7);          /* 1024 to 65536 by doubling, then by a quarter */
    CU_ASSERT(in_flight > 65536 / 128); /* filled over many insertions */
    for (uint64_t n = 0; n < N; n++)
        check_found(n);
    if (!store_is_valid(&f.device.store, &e))
        CU_FAIL(e.text);
    store_fixture_deinit(&f);
}

/* With room reserved for all keys, no other object is created. */
static void test_reserve(void)
{
    const struct tenant *t;
    uint64_t object;

    setup();
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

const struct test_case test_cases[] = {TEST(test_growth), TEST(test_reserve), TEST_END};
