/*
 * The order of stores to slot records: a start that finds them as they are after any instruction of a
 * reservation, a publication or a drop finds whole span heads, and slots that are COMMITTED have the key and
 * checksum of a page.
 */
#include <string.h>

#include "daemon/store/reserve.h"
#include "daemon/store/span.h"
#include "daemon/store/store.h"
#include "tests/lib/steps.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/store_fixture.h"

const char test_suite[] = "store_order";

#define POOL (UINT64_C(1) << 20)
#define EXTENT (UINT64_C(1) << 18)
#define UNIT (UINT64_C(1) << 16)

enum { INSTRUCTIONS_MIN = 100, OLD_CRC = 0x0badc0de, NEW_CRC = 0x600dc0de };

static struct store_fixture f;
static struct group *group, *other_group;
static uint32_t number; /* of the slot */
static const struct slot *record;
static unsigned n_seen[4]; /* by state */

/* ---- pages ---- */

static void publish(void)
{
    struct chunk_key key = store_fixture_key(2);

    (void) store_publish(&f.device.store, PAGE(&f.device.store, number), &key, NEW_CRC, NULL);
}

/* The slot had another page before, whose key and checksum are still in the record. */
static void check_page(void)
{
    struct chunk_key old = store_fixture_key(1), new = store_fixture_key(2);
    struct slot s = *record;

    n_seen[s.state]++;
    if (s.state != SLOT_COMMITTED)
        return;
    CU_ASSERT_FATAL((memcmp(&s.key, &new, sizeof(new)) == 0 && s.payload_crc32c == NEW_CRC) ||
                    (memcmp(&s.key, &old, sizeof(old)) == 0 && s.payload_crc32c == OLD_CRC));
}

/* Drops the page, and takes its slot again for another key. */
static void replace(void)
{
    store_unhold(&f.device.store, PAGE(&f.device.store, number));
    store_drop(&f.device.store, PAGE(&f.device.store, number), GHOST_EVICTED);
    (void) numbers_reserve(&f.device.store, group, 0, &number, NULL);
    publish();
}

static void test_page(void)
{
    struct chunk_key key = store_fixture_key(1);
    long n;

    store_fixture_init(&f, POOL, EXTENT, UNIT, POOL);
    group = store_fixture_group(&f, 0, 0, 1);
    assert(numbers_reserve(&f.device.store, group, 0, &number, NULL) == 0);
    assert(store_publish(&f.device.store, PAGE(&f.device.store, number), &key, OLD_CRC, NULL) == 0);
    record = pool_slot(&f.device.store.pool, number);
    memset(n_seen, 0, sizeof(n_seen));
    n = steps_run(replace, check_page);
    if (n < 0)
        test_skip("this system does not allow ptrace(2)");
    else
        CU_ASSERT(n > INSTRUCTIONS_MIN && n_seen[SLOT_FREE] && n_seen[SLOT_RESERVED] &&
                  n_seen[SLOT_COMMITTED]);
    store_unhold(&f.device.store,
                 PAGE(&f.device.store, number)); /* as before the child changed the shared record */
    store_fixture_deinit(&f);
}

/* ---- spans ---- */

/* The first slot of a group takes a span. */
static void reserve_first(void)
{
    (void) numbers_reserve(&f.device.store, other_group, 0, &number, NULL);
}

static void check_heads(void)
{
    const struct pool_extent *x = f.device.store.pool.extents[0];

    for (uint32_t unit = 0; unit < x->n_units; unit++) {
        struct span_head h = *slot_records_span(&x->records, unit);
        const struct group *g = h.slot_bytes == group->slot_bytes ? group : other_group;

        if (!h.in_use)
            continue;
        CU_ASSERT_FATAL(h.slot_bytes == g->slot_bytes && h.page_bytes == g->page_bytes &&
                        h.page_class == g->page_class && h.n_units == 1 && h.n_slots > 0 &&
                        h.n_slots * h.slot_bytes <= UNIT && h.first_head == 0 && h.n_heads == 2 &&
                        memcmp(h.table_digest, g->space->table_digest, sizeof(h.table_digest)) == 0);
        for (uint32_t i = 0; i < h.n_slots; i++)
            CU_ASSERT_FATAL(slot_records_slots(&x->records, unit)[i].state <= SLOT_RESERVED);
        n_seen[g == other_group]++;
    }
}

static void test_span(void)
{
    long n;

    store_fixture_init(&f, POOL, EXTENT, UNIT, POOL);
    group = store_fixture_group(&f, 0, 0, 1);
    other_group = store_fixture_group(&f, 0, 1, 0);
    assert(numbers_reserve(&f.device.store, group, 0, &number, NULL) == 0);
    assert(f.device.store.pool.n_extents == 1);
    memset(n_seen, 0, sizeof(n_seen));
    n = steps_run(reserve_first, check_heads);
    if (n < 0)
        test_skip("this system does not allow ptrace(2)");
    else
        CU_ASSERT(n > INSTRUCTIONS_MIN && n_seen[0] > 0 && n_seen[1] > 0);
    store_discard(&f.device.store, PAGE(&f.device.store, number));
    store_fixture_deinit(&f);
}

const struct test_case test_cases[] = {TEST(test_page), TEST(test_span), TEST_END};
