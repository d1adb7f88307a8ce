/* See cluster_name.h. */
#include "daemon/cluster/cluster_name.h"

#include <endian.h>
#include <sodium.h>
#include <string.h>

#include "daemon/tier/disk_format.h"
#include "daemon/tier/keyring.h"

static const char cluster_name_text[] = "kvcobra names in a cluster 1";

void cluster_name_key(const struct keyring *k, uint8_t ret[static CLUSTER_NAME_KEY_BYTES])
{
    (void) crypto_generichash(ret, CLUSTER_NAME_KEY_BYTES, (const uint8_t *) cluster_name_text,
                              sizeof(cluster_name_text) - 1, keyring_index_secret(k), KEYRING_SECRET_BYTES);
}

void cluster_name(const uint8_t name_key[static CLUSTER_NAME_KEY_BYTES], const struct tier_group *group,
                  const struct chunk_key *key, uint8_t ret[static CLUSTER_NAME_BYTES])
{
    const uint32_t numbers[] = {htole32(PAGE_FORMAT_VERSION), htole32(group->first_head),
                                htole32(group->n_heads), htole32(group->page_class)};
    const uint64_t page_bytes = htole64(group->page_bytes);
    crypto_generichash_state st;

    /* every part has a fixed length: the tenant's name is padded with zeros */
    (void) crypto_generichash_init(&st, name_key, CLUSTER_NAME_KEY_BYTES, CLUSTER_NAME_BYTES);
    (void) crypto_generichash_update(&st, (const uint8_t *) group->tenant, sizeof(group->tenant));
    (void) crypto_generichash_update(&st, group->table_digest, sizeof(group->table_digest));
    (void) crypto_generichash_update(&st, (const uint8_t *) numbers, sizeof(numbers));
    (void) crypto_generichash_update(&st, (const uint8_t *) &page_bytes, sizeof(page_bytes));
    (void) crypto_generichash_update(&st, key->bytes, sizeof(key->bytes));
    (void) crypto_generichash_final(&st, ret, CLUSTER_NAME_BYTES);
}
