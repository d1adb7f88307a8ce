/*
 * A sequence: per layer an exact tail, and pages of packed chunks that all layers share.
 *
 *   positions   0 .. 64 n_packed - 1          64 n_packed .. length - 1
 *               pages[0 .. n_packed - 1]      rows of the tail, binary16 of x - mean
 *
 * Layers run one after another, so inside a step they differ in length and in n_packed by what the step
 * appends. Pages are claimed for all layers at once, when the first of them appends.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra-eval.h"
#include "client/kvcobra.h"
#include "client/model/model.h"
#include "gpu/dtype.h"

struct eval;
struct seq_gpu;

#define TAIL_ROWS_MIN                                                                                        \
    (2 * CHUNK_TOKENS) /* a decode step holds at most this: 127 and the one being appended */

struct layer {
    size_t length;
    size_t n_packed;   /* chunks that this layer has in pages */
    uint16_t *rows[2]; /* by side: [shard heads, tail_rows, d] */
};

struct kvc_seq {
    struct kvc_seq *prev, *next;
    struct kvc_model *model;
    struct model_table *table;
    uint8_t *salt;
    size_t salt_bytes;
    bool on_heap;     /* the daemon refused to publish: private pages come from the heap until it takes one */
    size_t tail_rows; /* rows that each layer's tail has room for */
    struct layer *layers;
    size_t n_pages, n_pages_max;
    struct page **pages;
    const uint8_t **payloads; /* of pages, for the kernels: the GPU's addresses if it lives there */
    uint64_t number;          /* of its model, for sampling */
    uint64_t last_append;     /* client->n_appends of it: a sequence stands in an append once */
    size_t n_pages_before;    /* pages that it had then: what a failure goes back to */
    size_t first_lost;        /* chunk whose page the daemon may have given to somebody else; SIZE_MAX: none
                                 (reconnect.h) */
    uint64_t pages_moved;     /* client->pages_moved when payloads was right */
    struct eval *eval;        /* NULL in the product */
    struct seq_gpu *gpu;      /* what of it is on the GPU (seq_gpu.h); NULL: nothing, it is the host's */
};

static inline uint32_t seq_n_layers(const struct kvc_seq *s)
{
    return s->model->geometry.n_layers;
}

/* Elements of one side of one layer's tail. */
static inline size_t seq_row(const struct kvc_seq *s, uint32_t head, size_t row)
{
    return ((size_t) head * s->tail_rows + row) * s->model->geometry.d;
}

/* Chunks that a sequence of @length has packed before its next token: 64 (c + 2) <= length. */
static inline size_t chunks_due(size_t length)
{
    return length / CHUNK_TOKENS > 0 ? length / CHUNK_TOKENS - 1 : 0;
}

/* First statements of a public call on a sequence. Return: 0; -EINVAL: @s is NULL; -ECHILD; -EIO: its GPU is
 * lost. */
int seq_enter(struct kvc_seq *s);

/* What reads or publishes pages asks first. Return: 0; -ESTALE: pages were lost with the daemon, with a
 * sentence. */
int seq_check_whole(struct kvc_seq *s);

void seq_free(struct kvc_seq *s);

/* Shortest layer. */
size_t seq_length(const struct kvc_seq *s);
/* Whether all layers have the same length: between steps. */
bool seq_is_between_steps(const struct kvc_seq *s);
/* Chunks that every layer has packed. */
size_t seq_n_packed(const struct kvc_seq *s);

/* ---- seq_pages.c ---- */

/* Room for @n pages in the arrays. Return: 0; -ENOMEM. */
int seq_reserve_pages(struct kvc_seq *s, size_t n);

/**
 * seq_claim() - private pages up to @n_pages, all or none
 * Return: 0; -ENOSPC: the arena is full, with a sentence; -ENOMEM.
 */
int seq_claim(struct kvc_seq *s, size_t n_pages);

/* Takes over the reference. There is room. */
void seq_add_page(struct kvc_seq *s, struct page *p);

/* Keeps the first @n pages. Releases go out with leases_flush(). */
void seq_drop_pages(struct kvc_seq *s, size_t n);

/* Addresses of the payloads, refreshed if pages moved. */
const uint8_t *const *seq_payloads(struct kvc_seq *s);

/* ---- seq_append.c ---- */

/* Room for @rows rows in every layer's tail. Return: 0; -ENOMEM; on a GPU as gpu_alloc(), with a sentence. */
int seq_grow_tail(struct kvc_seq *s, size_t rows);
/* Gives back the room that a long piece took, once it is packed. */
void seq_trim_tail(struct kvc_seq *s);

/* Packs layer @layer up to @n_chunks; its tail has those rows and their pages are claimed. Return: 0; on a
 * GPU -EIO. */
int seq_pack_layer(struct kvc_seq *s, uint32_t layer, size_t n_chunks);

/* ---- seq_eval.c ---- */

/* Return: 0; -EINVAL, -ENOMEM with a sentence. */
int eval_init(struct kvc_seq *s, const kvc_eval_options *o);
/* Takes over vectors and claims pages; they count with eval_append(). Return: 0; -EINVAL, -ENOMEM with a
 * sentence. */
int eval_load(struct kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const kvc_append_item *item);
/* Codes the @n_new tokens that eval_load() brought. */
void eval_append(struct kvc_seq *s, uint32_t layer, size_t n_new);

/* Queries first .. first + n - 1 of the newest n_q tokens. */
struct eval_queries {
    const float *q; /* [n_q, query heads of the shard, d] */
    float *out;
    size_t n_q, first, n;
    size_t window; /* as in kvc_attend_options */
};
/* Attention of one KV head; @scratch: eval_scratch_bytes() of @n queries. */
void eval_attend(struct kvc_seq *s, uint32_t layer, uint32_t head, const struct eval_queries *queries,
                 void *scratch);
size_t eval_scratch_bytes(const struct kvc_seq *s, size_t n_q);
void eval_read(const struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n,
               float *out);
size_t eval_truncate(struct kvc_seq *s, size_t n);
/* What the product would hold exactly: newest tokens, first tokens. */
size_t eval_tail_tokens(const struct kvc_seq *s);
uint32_t eval_n_sink(const struct kvc_seq *s);
void eval_free(struct kvc_seq *s);
