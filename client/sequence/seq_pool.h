/* What matching and publishing share: chunk keys, and taking over a page that the daemon granted. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/sequence/seq.h"
#include "proto/wire.h"

static inline enum page_class class_of_chunk(size_t chunk)
{
    return chunk == 0 ? PAGE_FIRST : PAGE_REST;
}

/* Key of the chunk of @tokens ([64]) behind @parent (NULL: the first) in this sequence's table, model and
 * salt. */
void seq_chunk_key(const struct kvc_seq *s, const struct chunk_key *parent, const uint32_t *tokens,
                   struct chunk_key *ret_key);

/* The header that chunk @chunk under @key must have, payload checksum left out. */
void seq_page_header(const struct kvc_seq *s, size_t chunk, const struct chunk_key *key,
                     struct page_header *ret);

/**
 * seq_map_granted() - where a granted page lies, checked
 * @ref: as the daemon named it
 * @ret: all but the lease and its item
 *
 * The extent is mapped if need be. The header in the pool must be the one that @key stands for: the index is
 * a hint and the daemon could be wrong about its own pool, but no sequence decodes a page of another table or
 * position. (On a GPU there is none: client/README.md.)
 *
 * Return: 0; -EPROTO: not the page it should be; -EMFILE, -ENOMEM, -ENOTCONN …
 */
int seq_map_granted(struct kvc_seq *s, size_t chunk, const struct chunk_key *key, const Kvcobra__PageRef *ref,
                    struct page_grant *ret);
