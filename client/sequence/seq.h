/*
 * A sequence: per layer an exact tail, and pages of packed chunks that all layers share.
 *
 *   positions   0 .. 64 n_packed - 1          64 n_packed .. length - 1
 *               pages[0 .. n_packed - 1]      rows of the tail, binary16 of x - mean
 *
 * With KVC_SEQ_REPEATABLE pages[n_packed .. length / 64 - 1] have codes of full chunks in the tail too.
 *
 * Layers run one after another, so inside a step they differ in length and in n_packed by what the step
 * appends. Pages are claimed for all layers at once, when the first of them appends.
 *
 * There are five kinds, which differ in their operations (seq_ops.h): on the host, on a GPU, on a GPU with
 * pages in host memory, where kernels or the CPU encode, and for evaluation.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"
#include "client/model/model.h"
#include "client/sequence/pages.h"

struct seq_eval;
struct seq_gpu;
struct seq_staged;
struct seq_ops;

struct layer {
    size_t length;
    size_t n_packed;   /* chunks of this layer that are in pages only */
    size_t n_ahead;    /* chunks behind them that are encoded too, before they are due: 0 or 1 (seq_host.c) */
    uint16_t *rows[2]; /* by side: [shard heads, tail_rows, d] (seq_tail.h) */
};

struct kvc_seq {
    struct kvc_seq *prev, *next;
    const struct seq_ops *ops; /* of its kind, for life */
    struct kvc_model *model;
    struct model_table *table;
    uint8_t *salt;
    size_t salt_bytes;
    enum kvc_keys keys;            /* the caller's form of keys and queries; rows and pages are before RoPE */
    enum kvc_pairs pairs;          /* the caller's order of their dimensions; rows and pages are half-split */
    uint32_t flags;                /* KVC_SEQ_* */
    uint32_t fetch_ms;             /* a match waits so long for pages of slower tiers; 0: not at all */
    uint32_t compute_tokens_per_s; /* of the caller; 0: unknown */
    uint32_t window;               /* that a match needs; 0: all tokens */
    bool on_heap;     /* the daemon refused its pages: private ones come from the heap until it accepts one */
    size_t tail_rows; /* rows that each layer's tail has room for */
    struct layer *layers;
    size_t n_pages, n_pages_max;
    size_t n_matched;  /* leading chunks that were matched */
    size_t first_read; /* chunk before which nothing is read: a match of a window left those out */
    struct page **pages;
    const uint8_t **payloads; /* of pages, for the kernels: addresses on the GPU if it lives there */
    uint64_t number;          /* within its model, for sampling */
    uint64_t last_append;     /* client->n_appends of its last append: a call may contain a sequence once */
    size_t n_pages_before;    /* pages before that append: restored if it fails */
    size_t first_lost; /* chunk whose page the daemon may have overwritten (seq_resume.h); SIZE_MAX: none */
    uint64_t pages_moved;      /* client->pages_moved when payloads was filled */
    struct kvc_fetch *fetch;   /* running, or not freed yet (seq_fetch.c); NULL: none */
    struct seq_eval *eval;     /* of an evaluation sequence (seq_eval.c) */
    struct seq_gpu *gpu;       /* of a sequence on a GPU (client/gpu/seq_gpu.h) */
    struct seq_staged *staged; /* of one on a GPU with pages in host memory (client/gpu/seq_staged.h) */
};

static inline uint32_t seq_n_layers(const struct kvc_seq *s)
{
    return s->model->geometry.n_layers;
}

/* Chunks that a sequence of @length has packed before its next token: 64 (c + 2) <= length. */
static inline size_t chunks_due(size_t length)
{
    return length / CHUNK_TOKENS > 0 ? length / CHUNK_TOKENS - 1 : 0;
}

/* Chunks that a commit packs and publishes, and that keep no exact rows. With KVC_SEQ_PUBLISH_ALL these are
 * all full ones, else see chunks_due(), which is the only rule on a GPU. */
static inline size_t seq_chunks_due(const struct kvc_seq *s, size_t length)
{
    return s->flags & KVC_SEQ_PUBLISH_ALL ? length / CHUNK_TOKENS : chunks_due(length);
}

/* Chunks that an append packs before it stores its first token: a decode step then sees 64 to 127 exact
 * tokens, with KVC_SEQ_PUBLISH_ALL 1 to 64. */
static inline size_t seq_chunks_due_before_append(const struct kvc_seq *s, size_t length)
{
    return s->flags & KVC_SEQ_PUBLISH_ALL ? length / CHUNK_TOKENS : chunks_due(length + 1);
}

/* Whether a chunk is encoded as soon as it is full, while its exact rows stay in the tail until it is due:
 * queries of later chunks read its codes. */
static inline bool seq_codes_at_once(const struct kvc_seq *s)
{
    return (s->flags & KVC_SEQ_REPEATABLE) != 0;
}

/* Pages that a layer of @length has codes for, now or when its due chunks are packed. */
static inline size_t seq_n_pages_needed(const struct kvc_seq *s, size_t length)
{
    return seq_codes_at_once(s) ? length / CHUNK_TOKENS : seq_chunks_due(s, length);
}

/* First statement of a public call on a sequence.
 * Return: 0; -EINVAL: @s is NULL; -ECHILD; -EIO: its GPU is lost; -EBUSY: see seq_check_no_fetch(). */
int seq_enter(struct kvc_seq *s);

/* Return: 0; -EBUSY with a sentence: the sequence belongs to a fetch. */
int seq_check_no_fetch(const struct kvc_seq *s);

/* Before pages are read or published.
 * Return: 0; -ESTALE with a sentence: pages were lost with the daemon; -EINVAL: see seq_ops.check_sound. */
int seq_check_whole(const struct kvc_seq *s);

/* Return: 0; -EINVAL with a sentence: @position is of a chunk that a match left out. */
int seq_check_position(const struct kvc_seq *s, size_t position);

/* Length of the shortest layer. */
size_t seq_length(const struct kvc_seq *s);

/* Whether all layers have the same length: between steps. */
bool seq_is_between_steps(const struct kvc_seq *s);

/* Chunks of which every layer has codes in pages, with or without exact rows. */
size_t seq_n_coded(const struct kvc_seq *s);

/* Chunks that every layer has packed. */
size_t seq_n_packed(const struct kvc_seq *s);

/* Chunks that some layer has packed. */
size_t seq_n_packed_most(const struct kvc_seq *s);

/* Chunks that some layer has packed, or encoded ahead. */
size_t seq_n_encoded_most(const struct kvc_seq *s);

/**
 * seq_cut() - bring all layers to length @n or less; pages stay
 *
 * Exact as long as the cut lies in every layer's tail. Rows before the tail exist as codes only, so a deeper
 * cut goes to the chunk boundary and drops the rows of the tails. If the window before the cut would have
 * chunks that a match left out, it goes to 0.
 * Return: the new length.
 */
size_t seq_cut(struct kvc_seq *s, size_t n);

/* Frees the sequence and its references. */
void seq_free(struct kvc_seq *s);
