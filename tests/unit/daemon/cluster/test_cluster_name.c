/* Tests of daemon/cluster/cluster_name: hosts of a fleet agree, and nothing else has the same name. */
#include <string.h>

#include "daemon/cluster/cluster_name.h"
#include "daemon/tier/disk_format.h"
#include "daemon/tier/keyring.h"
#include "tests/lib/test.h"

const char test_suite[] = "cluster_name";

enum { NAMES = 8 };

static void name_of(uint8_t secret_byte, unsigned change, uint8_t ret[static CLUSTER_NAME_BYTES])
{
    const uint8_t secret[KEYRING_SECRET_BYTES] = {secret_byte};
    uint8_t name_key[CLUSTER_NAME_KEY_BYTES];
    struct chunk_key key = {{1, 2, 3}};
    struct tier_group g;
    struct keyring *ring = NULL;

    CU_ASSERT_EQUAL_FATAL(keyring_of_host(secret, &ring, NULL), 0);
    cluster_name_key(ring, name_key);
    tier_group_init(&g, change == 1 ? "research2" : "research");
    memset(g.table_digest, change == 2 ? 8 : 7, sizeof(g.table_digest));
    g.first_head = change == 3 ? 2 : 1;
    g.n_heads = change == 4 ? 2 : 1;
    g.page_class = change == 5 ? 1 : 0;
    g.page_bytes = change == 6 ? 5000 : 4000;
    key.bytes[CHUNK_KEY_BYTES - 1] = change == 7;
    cluster_name(name_key, &g, &key, ret);
    (void) keyring_unref(ring);
}

static void test_names_differ(void)
{
    uint8_t names[NAMES + 1][CLUSTER_NAME_BYTES], again[CLUSTER_NAME_BYTES];

    for (unsigned i = 0; i < NAMES; i++)
        name_of(1, i, names[i]);
    name_of(2, 0, names[NAMES]); /* another fleet */
    for (unsigned i = 0; i <= NAMES; i++)
        for (unsigned k = 0; k < i; k++)
            CU_ASSERT_NOT_EQUAL(memcmp(names[i], names[k], CLUSTER_NAME_BYTES), 0);

    name_of(1, 0, again);
    CU_ASSERT_EQUAL(memcmp(again, names[0], CLUSTER_NAME_BYTES), 0);
}

const struct test_case test_cases[] = {TEST(test_names_differ), TEST_END};
