/* Common to matching and publishing: chunk keys, and mapping a page that the daemon granted. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/sequence/seq.h"
#include "proto/wire.h"

static inline enum page_class class_of_chunk(size_t chunk)
{
    return chunk == 0 ? PAGE_FIRST : PAGE_REST;
}

/* What the chunk keys of sequences with these properties depend on, besides tokens. Borrows all arguments. */
struct chunk_identity seq_pool_identity(const struct kvc_model *m, const uint8_t *table_digest,
                                        const void *salt, size_t salt_bytes, uint32_t flags);

/* Key of the chunk of @tokens ([64]) after @parent (NULL: the first chunk) with this
 * sequence's table, model and salt. */
void seq_chunk_key(const struct kvc_seq *s, const struct chunk_key *parent, const uint32_t *tokens,
                   struct chunk_key *ret_key);

/* Keys of the pages of the first @n chunks of @tokens. Return: 0; -EINVAL with a sentence: a page has another
 * key already, so these are not the tokens that it was published or matched with. */
int seq_derive_keys(struct kvc_seq *s, const uint32_t *tokens, size_t n);

/* The header that chunk @chunk under @key must have, without the payload's checksum. */
void seq_page_header(const struct kvc_seq *s, size_t chunk, const struct chunk_key *key,
                     struct page_header *ret);

/**
 * seq_map_granted() - map a granted page and check it
 * @ref: as the daemon named it
 * @ret: all but the lease and its item
 *
 * The extent is mapped if it is not yet. The header in the pool must belong to @key: the index is a hint, and
 * the daemon could be wrong about its own pool, but no sequence decodes a page of another table or position.
 * (Pages on a GPU have no header: client/README.md.)
 *
 * Return: 0; -EPROTO: another page; -EMFILE, -ENOMEM, -ENOTCONN ...
 */
int seq_map_granted(struct kvc_seq *s, size_t chunk, const struct chunk_key *key, const Kvcobra__PageRef *ref,
                    struct page_grant *ret);

/* The request of a lease on @n pages of the sequence; borrows @items. */
void seq_pool_lease_request(const struct kvc_seq *s, Kvcobra__LeaseItem **items, size_t n,
                            Kvcobra__Lease *ret);

/* Requests a lease on @n pages of the sequence.
 * Return: 0: *ret has the LEASE reply; else as connection_request(). */
int seq_pool_lease(struct kvc_seq *s, Kvcobra__LeaseItem **items, size_t n, struct reply *ret);
