/*
 * A model: its geometry, the tables its sequences use, and what the daemon gave for it.
 *
 * Reference counts: the caller's handle and every sequence hold the model; the model (for its current table)
 * and every sequence hold a table. Freeing a handle below which sequences live keeps them working.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection/backoff.h"
#include "client/gpu/gpu.h"
#include "client/kvcobra.h"
#include "client/sequence/pages.h"
#include "client/model/watch.h"
#include "gpu/chunk.h"
#include "gpu/page_layout.h"
#include "proto/index.h"
#include "proto/shared.h"

struct kvc_client;
struct reply;

struct model_table {
    struct model_table *next;
    struct table *table;
    struct page_layout layout;
    unsigned refs;
    bool referenced;              /* the daemon counts a reference of ours */
    struct heap_pool heap[2];     /* private pages, by class */
    struct gpu_slots gpu_heap[2]; /* likewise on a GPU */
    struct gpu_memory gpu_plan;   /* gpu_table() */
    struct errmsg gpu_refusal;    /* why it is not: gpu_check_table(); empty: it is, or nobody has asked */
    char gpu_kernel[48];          /* seq_gpu_kernel_name() */
    uint64_t code_bits, padding_bits; /* per token of the shard: of real coordinates, of padding ones */
    struct encode_counts counts[2];   /* by side: how the quantisers fit what is encoded (DESIGN 3.3) */
};

struct model_remote {       /* all empty when embedded */
    bool opened;            /* once; whether it still is: model_is_connected() */
    uint64_t epoch;         /* of the connection that it was opened on */
    struct backoff backoff; /* of attempts to open it again */
    uint32_t handle;
    uint32_t control_slot;
    struct extent *control, *index;
    struct index_reader reader;
    uint8_t index_key[INDEX_KEY_BYTES];
};

struct scratch { /* one thread per client: shared by the model's sequences */
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
    uint64_t revision; /* of the word that named it; 0 embedded */
    struct model_remote remote;
    struct scratch scratch;
    struct watch watch;
    struct model_table *canary; /* one reference, kept while the control page names it; NULL: none */
    uint64_t n_seqs_made;
    struct kvc_seq *seqs;
};

void model_ref(struct kvc_model *m);
void model_unref(struct kvc_model *m);

/* Whether there is a daemon to talk to about this model. */
bool model_is_connected(const struct kvc_model *m);

/* ---- model_tables.c ---- */

/**
 * model_table_add() - make a parsed table usable by sequences of @m
 * @table: transferred, also on failure
 * Return: 0 with one reference for the caller; -EINVAL: of another model or geometry; -ENOMEM.
 */
int model_table_add(struct kvc_model *m, struct table *table, bool referenced, struct model_table **ret,
                    struct errmsg *e);

struct model_table *model_table_ref(struct model_table *t);
/* The last reference tells the daemon too. */
void model_table_unref(struct kvc_model *m, struct model_table *t);

/**
 * model_table_follow() - make m->current the table that the daemon's word names
 *
 * No system call while the word names the table we have. Without a daemon the current table stays.
 * Return: 0; -ENODATA: no active table; -ESTALE, -ENOTCONN, -EPROTO, -EBADMSG, -ENOMEM …
 */
int model_table_follow(struct kvc_model *m);

/**
 * model_table_adopt() - make table @digest, of which OPEN_MODEL took a reference for us, the current one
 *
 * A table of which we have a reference already needs no second one: that one is given back.
 */
int model_table_adopt(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES]);

/* Table @digest for something besides the current one, fetched without a reference at the daemon. Return: 0;
 * -ESTALE … */
int model_table_fetch(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret);

/* The same with a reference at the daemon: sequences may use it. */
int model_table_hold(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret);

/* After a reconnection: references on tables that sequences go on using, as far as the daemon gives them. */
void model_tables_reference(struct kvc_model *m);

/* A reference of ours at the daemon on the table, taken if there is none. Return: 0; -ESTALE, -ENOENT: not
 * any more. */
int model_table_reference(struct kvc_model *m, struct model_table *t);

/* ---- model_remote.c ---- */

/* OPEN_MODEL: maps what the daemon gives; the current table is fetched. Also used when the daemon rebuilt an
 * object. */
int model_remote_open(struct kvc_model *m);
void model_remote_deinit(struct model_remote *r);
