/*
 * A model: its geometry, the tables of its sequences, and the memory objects that the daemon sent for it.
 *
 * Reference counts: the caller's handle and every sequence hold the model; the model (for its current table)
 * and every sequence hold a table. A model handle may be freed before its sequences: they keep working.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection/client.h"
#include "client/kvcobra.h"
#include "client/model/heap_pool.h"
#include "client/model/watch.h"
#include "gpu/chunk.h"
#include "gpu/page_layout.h"
#include "gpu/rope.h"
#include "proto/bloom.h"
#include "proto/index.h"
#include "proto/shared.h"

struct model_table_gpu;

struct model_table {
    struct model_table *next;
    struct table *table;
    struct page_layout layout;
    unsigned refs;
    bool referenced;             /* the daemon counts a reference of ours */
    struct heap_pool heap[2];    /* private pages on the host, by class */
    struct model_table_gpu *gpu; /* image and private pages on a GPU (client/gpu/gpu_table.h); NULL: none */
    char kernel_name[48];        /* room for client_ops.kernel_name() */
    uint64_t code_bits;          /* per token of the shard: bits of real coordinates */
    uint64_t padding_bits;       /* per token of the shard: bits of padding coordinates */
    struct encode_counts counts[2]; /* by side: how the quantisers fit the encoded vectors (DESIGN 3.3) */
};

/* The objects from the reply to OPEN_MODEL; all empty when embedded. */
struct model_remote {
    bool opened;            /* it was opened before; model_is_connected(): it is open now */
    uint64_t epoch;         /* of the connection that it was opened on */
    struct backoff backoff; /* of attempts to open it again */
    uint32_t handle;
    uint32_t control_slot;
    struct extent *control, *index;
    struct index_reader reader;
    struct extent *filter;  /* over slower tiers: model_filter.h; NULL: none */
    uint64_t filter_object; /* its number in the control page, also if it could not be mapped */
    struct bloom_reader bloom;
    uint8_t index_key[INDEX_KEY_BYTES];
};

/* Memory for one chunk; a client has one thread at a time, so the model's sequences share it. */
struct model_scratch {
    float *rows; /* [64, d] of one head and side */
    struct chunk_work chunk;
    struct rope_table angles; /* of keys that callers have after RoPE */
};

struct kvc_model {
    struct kvc_model *next;
    struct kvc_client *client;
    unsigned refs;
    struct geometry geometry;            /* the caller's, and from the first table on that table's */
    struct exact_form exact;             /* asked for while no table is active; EXACT_NONE: not */
    uint32_t n_positions;                /* longest sequence */
    uint8_t opened_digest[DIGEST_BYTES]; /* as the caller passed it */
    /* in chunk keys, page headers and tables; not opened_digest if that is an alias */
    uint8_t model_digest[DIGEST_BYTES];
    struct shard shard;
    uint32_t n_q_heads;         /* query heads of the shard */
    struct model_table *tables; /* every table that is in use */
    struct model_table *current;
    uint64_t revision; /* of the control word that named the current table; 0 embedded */
    struct model_remote remote;
    struct model_scratch scratch;
    struct watch watch;
    struct model_table *canary; /* one reference, held while the control page names it; NULL: none */
    uint64_t n_seqs_made;
    struct kvc_seq *seqs;
};

/* Whether the model is open on the present connection. */
static inline bool model_is_connected(const struct kvc_model *m)
{
    const struct connection *c = &m->client->connection;

    return m->remote.opened && connection_is_open(c) && m->remote.epoch == c->epoch;
}
