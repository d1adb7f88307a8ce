/* Chunks of a prompt without a sequence, for kvc_model_peek() and kvc_model_prefetch(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "client/sequence/seq_pool.h"
#include "proto/index.h"

/* The table of a sequence with these options that would match, and what its keys depend on. */
struct seq_peek_subject {
    uint8_t table_digest[DIGEST_BYTES];
    struct chunk_identity identity; /* borrows table_digest, and the salt of the options */
};

/*
 * @o: as read by seq_options_read(). Without a table_digest it is the active table. Return: 0; -ENODATA:
 * there is none; as model_table_active().
 */
int seq_peek_subject(struct kvc_model *m, const kvc_seq_options *o, struct seq_peek_subject *ret);

/* Whether the index has chunk number @chunk. A moved index is opened again, once. @m is connected. */
bool seq_peek_in_memory(struct kvc_model *m, const struct chunk_key *key, size_t chunk,
                        struct index_hit *ret_hit);
