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
    uint8_t index_key[INDEX_KEY_BYTES];
};

/* Memory for one chunk; a client has one thread at a time, so the model's sequences share it. */
struct model_scratch {
    float *rows; /* [64, d] of one head and side */
    struct chunk_work chunk;
};

struct kvc_model {
    struct kvc_model *next;
    struct kvc_client *client;
    unsigned refs;
    struct geometry geometry;
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

void model_ref(struct kvc_model *m);
void model_unref(struct kvc_model *m);

/* Whether the model is open on the present connection. */
static inline bool model_is_connected(const struct kvc_model *m)
{
    const struct connection *c = &m->client->connection;

    return m->remote.opened && connection_is_open(c) && m->remote.epoch == c->epoch;
}

/**
 * model_connect() - client_revive(), and the model opened on the connection that is open now
 * Return: 0: model_is_connected(); -ENOTCONN: embedded, lost, or the daemon cannot open this model now.
 */
int model_connect(struct kvc_model *m);

/* Opens the model again on the present connection, references its tables, calls the model_reopened hook.
 * Return: 0; as model_remote_open(), after which the next attempt waits. */
int model_reopen(struct kvc_model *m);

/* ---- model_table.c ---- */

/**
 * model_table_add() - make a parsed table usable by sequences of @m
 * @table: transferred, also on failure
 * Return: 0 with one reference for the caller; -EINVAL: the table is for another model or geometry; -ENOMEM.
 */
int model_table_add(struct kvc_model *m, struct table *table, bool referenced, struct model_table **ret,
                    struct errmsg *e);

struct model_table *model_table_ref(struct model_table *t);

/* The last reference also gives back the one at the daemon. NULL is fine. */
void model_table_unref(struct kvc_model *m, struct model_table *t);

/* Gives back a reference that the daemon counts on table @digest. */
void model_table_unref_at_daemon(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES]);

/* ---- model_remote.c ---- */

/* Sends OPEN_MODEL and maps the objects in its reply. @ret_digest: the active table, on which the
 * daemon counts a reference of ours.
 * Return: 0; -ENODATA, -ENOTCONN, -EPROTO, -ENOMEM ... */
int model_remote_import(struct kvc_model *m, uint8_t ret_digest[DIGEST_BYTES]);
void model_remote_deinit(struct model_remote *r);

/* ---- model_tables.c ---- */

/* model_remote_import(), and makes the active table the current one. Called again when
 * the daemon rebuilt an object. */
int model_remote_open(struct kvc_model *m);

/**
 * model_table_follow() - make m->current the table that the control page names
 *
 * No system call while the page names the table that we have. Without a daemon the current table stays.
 * Return: 0; -ENODATA: no active table; -ESTALE, -ENOTCONN, -EPROTO, -EBADMSG, -ENOMEM ...
 */
int model_table_follow(struct kvc_model *m);

/* Table @digest without a reference at the daemon, which only sequences need. Return: 0; -ESTALE ... */
int model_table_fetch(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret);

/* The same with a reference at the daemon: sequences may use it. */
int model_table_hold(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret);

/* Makes sure that the daemon counts a reference of ours on the table.
 * Return: 0; -ESTALE, -ENOENT: the daemon does not have it. */
int model_table_reference(struct kvc_model *m, struct model_table *t);

/* The same after a reconnection, for all tables that sequences use; a table that the daemon
 * does not have stays unreferenced. */
void model_tables_reference(struct kvc_model *m);
