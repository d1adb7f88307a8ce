/*
 * Limits of what one tenant may have in the store, as a client meets them. At each limit only the request
 * that exceeds it fails, the daemon takes no more memory, and everything else works.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "store_limits";

static struct chunk_key chosen_key(uint32_t id)
{
    const uint64_t words[2] = {(uint64_t) 0x12345678 << 32 | id, (uint64_t) 0x9abcdef0 << 32 | id};
    struct chunk_key key;

    memcpy(key.bytes, words, sizeof(words));
    return key;
}

static int publish_key(struct raw_model *m, const struct chunk_key *key, struct raw_slot *ret_slot)
{
    *ret_slot = raw_reserve(m, key, PAGE_REST);
    if (ret_slot->err < 0)
        return ret_slot->err;
    raw_write_page(m, raw_table, key, PAGE_REST, 0, 1);
    return raw_commit(m, ret_slot, key, 0, NULL);
}

/* What STATUS says about the first tenant, and all indexes. */
static void read_use(uint64_t *ret_used, uint64_t *ret_index)
{
    Kvcobra__Reply *r = raw_status();

    *ret_used = r->status->tenants[0]->used_bytes;
    *ret_index = r->status->index_bytes;
    wire_reply_free(r);
}

/*
 * 64 keys with equal homes use all places that such keys have. COMMIT of one more fails, however often it is
 * repeated, and can be aborted.
 */
static void test_keys_with_equal_homes(void)
{
    enum { PLACES = 64, REPEATS = 12 };
    struct raw_slot slot, refused;
    uint64_t used, index, used_now, index_now;
    struct chunk_key key;
    struct raw_model m, again;

    raw_start(DAEMON_BY_FD, NULL);
    m = raw_model_open();
    for (uint32_t i = 0; i < PLACES; i++) {
        key = chosen_key(i);
        CU_ASSERT_EQUAL_FATAL(publish_key(&m, &key, &slot), 0);
    }
    key = chosen_key(PLACES);
    CU_ASSERT_EQUAL(publish_key(&m, &key, &refused), -ENOSPC);
    read_use(&used, &index);
    for (unsigned i = 0; i < REPEATS; i++)
        CU_ASSERT_EQUAL(raw_commit(&m, &refused, &key, 0, NULL), -ENOSPC);
    read_use(&used_now, &index_now);
    CU_ASSERT(used_now == used && index_now == index);
    CU_ASSERT_EQUAL(
        raw_open_model(raw_open(raw_daemon.socket), &raw_geometry, random_table_model_digest, &again), 0);
    CU_ASSERT_EQUAL(again.index_object, m.index_object);
    CU_ASSERT_EQUAL(raw_publish(&again, 5, &slot, NULL), 0); /* other keys find places */
    CU_ASSERT_EQUAL(raw_abort(&m, &refused), 0);
    raw_close_model(&again);
    raw_close_model(&m);
    raw_stop();
}

/* ---- leases ---- */

/*
 * A tenant with all the leases that it may have gets EDQUOT, and a page whose lease cannot be recorded is not
 * published.
 */
static void check_lease_limit(const char *const *args, uint64_t n_leases)
{
    struct raw_slot slots[8], more;
    uint64_t leases[8], lease;
    struct chunk_key key = raw_key(100);
    struct raw_model m, other;
    size_t granted;
    int reason;

    raw_start(DAEMON_BY_FD, args);
    m = raw_model_open();
    for (uint64_t n = 0; n < n_leases; n++)
        CU_ASSERT_EQUAL_FATAL(raw_publish(&m, n, &slots[n], &leases[n]), 0);
    other = raw_model_open(); /* of the same tenant */
    CU_ASSERT_EQUAL(raw_publish(&other, 100, &more, NULL), -EDQUOT);
    key = raw_key(0);
    CU_ASSERT_EQUAL(raw_lease(&other, &key, &slots[0], 1, &granted, &lease, &reason), -EDQUOT);
    key = raw_key(100);
    CU_ASSERT_FALSE(raw_reserve(&m, &key, PAGE_REST).exists);
    CU_ASSERT_EQUAL(raw_held_pages(), n_leases);
    CU_ASSERT_EQUAL(raw_release(&m, leases[1]), 0);
    CU_ASSERT_EQUAL(raw_commit(&other, &more, &key, 0, NULL), 0); /* the reservation is still there */
    CU_ASSERT_TRUE(raw_reserve(&m, &key, PAGE_REST).exists);
    raw_close_model(&other);
    raw_close_model(&m);
    raw_stop();
}

static void test_lease_limits(void)
{
    check_lease_limit((const char *const[]){"--leases-per-tenant=5", NULL}, 5);
    check_lease_limit((const char *const[]){"--leased-pages-per-tenant=6", NULL}, 6);
}

/* ---- groups ---- */

/* A tenant with a page in each group that it may have: another class is refused until a group has no page. */
static void test_groups(void)
{
    struct raw_slot rest, first;
    uint64_t leases[2];
    struct raw_model m;

    raw_start(DAEMON_BY_FD, (const char *const[]){"--groups-per-tenant=1", NULL});
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &rest, &leases[0]), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 2, &rest, &leases[1]), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 0, &first, NULL), -EDQUOT);
    CU_ASSERT_EQUAL(raw_release(&m, leases[0]), 0);
    CU_ASSERT_EQUAL(raw_release(&m, leases[1]), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 0, &first, NULL), -EDQUOT); /* unheld pages have a group, too */
    CU_ASSERT_EQUAL(raw_evict(""), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 0, &first, NULL), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &rest, NULL), -EDQUOT);
    raw_close_model(&m);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_groups),
    TEST(test_lease_limits),
    TEST(test_keys_with_equal_homes),
    TEST_END,
};
