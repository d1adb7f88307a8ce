/* The key of a chunk: a keyed BLAKE2b over a fixed, length-prefixed encoding, and a mark of the chunk before
 * it (proto/README.md draws both). */
#include <assert.h>
#include <endian.h>
#include <sodium.h>
#include <string.h>

#include "proto/page.h"

#define CHUNK_KEY_FORMAT 2
#define CHUNK_KEY_REPEATABLE 1

static void key_add_u32(crypto_generichash_state *st, uint32_t v)
{
    uint32_t le = htole32(v);

    (void) crypto_generichash_update(st, (const uint8_t *) &le, sizeof(le));
}

static void key_add_bytes(crypto_generichash_state *st, const void *p, size_t bytes)
{
    key_add_u32(st, (uint32_t) bytes);
    if (bytes > 0)
        (void) crypto_generichash_update(st, p, bytes);
}

/* Updates of BLAKE2b cannot fail; libsodium's int result exists for other hashes. */
void chunk_key_derive(const uint8_t index_key[static INDEX_KEY_BYTES], const struct chunk_identity *id,
                      const struct chunk_key *parent, const uint32_t tokens[static 64],
                      struct chunk_key *ret_key)
{
    static const struct chunk_key no_parent;
    const struct chunk_key before = parent ? *parent : no_parent; /* @ret_key may be the parent */
    crypto_generichash_state st;

    assert(id->salt_bytes <= CHUNK_SALT_BYTES_MAX);
    (void) crypto_generichash_init(&st, index_key, INDEX_KEY_BYTES, CHUNK_KEY_BYTES);
    key_add_u32(&st, CHUNK_KEY_FORMAT);
    key_add_bytes(&st, id->table_digest, 32);
    key_add_bytes(&st, id->model_digest, 32);
    key_add_u32(&st, id->first_head);
    key_add_u32(&st, id->n_heads);
    key_add_bytes(&st, id->salt, id->salt_bytes);
    key_add_bytes(&st, before.bytes, CHUNK_KEY_BYTES);
    key_add_u32(&st, 64 * 4);
    for (unsigned i = 0; i < 64; i++)
        key_add_u32(&st, tokens[i]);
    if (id->repeatable)
        key_add_u32(&st, CHUNK_KEY_REPEATABLE);
    (void) crypto_generichash_final(&st, ret_key->bytes, CHUNK_KEY_BYTES);
    memcpy(ret_key->bytes + CHUNK_KEY_MARK_OFFSET, before.bytes, CHUNK_KEY_MARK_BYTES);
}
