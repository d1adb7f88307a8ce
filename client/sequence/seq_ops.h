/*
 * The operations in which the five kinds of sequences differ: on the host (seq_host.c), on a GPU, with pages
 * there or in host memory, and those with codes that no kernel knows (client/gpu/gpu_api.c), for evaluation
 * (seq_eval.c). A sequence gets its table when
 * it is created and keeps it. Public calls check their arguments and then call the table; they never test the
 * kind.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"
#include "gpu/page_layout.h"

struct kvc_client;
struct kvc_seq;
struct seq_attend_call;
struct seq_attend_piece;
struct chunk_work;

/* One call of kvc_seq_append_batch(), with checked arguments. */
struct seq_append_call {
    struct kvc_client *client;
    const kvc_append_item *items;
    size_t n;
    uint32_t layer;
    enum kvc_dtype dtype;
    bool capturing;  /* on a GPU: the stream records a graph */
    size_t n_queued; /* on a GPU: items that append_apply() has queued */
};

/* Positions of one head and side, inside one chunk. */
struct seq_rows {
    uint32_t layer, head;
    enum side side;
    size_t first, n;
};

/* One call that reads, with checked arguments: where the numbers of each position go. */
struct seq_read_call {
    struct kvc_seq *seq;
    size_t first, n;
    uint32_t first_layer, n_layers;
    void *const *bases; /* [n_layers, 2]; NULL: not read */
    size_t dim_stride, token_stride, head_stride, block_stride;
    size_t block_tokens;
    const int64_t *blocks; /* [position / block_tokens]; NULL: block i is at i, @first is its first token */
    enum kvc_dtype dtype;
};

struct seq_ops {
    bool uses_arena;   /* private pages lie in the arena while the model is connected */
    bool is_shareable; /* it can be published, matched and forked */
    bool takes_forms;  /* append and attend take any number type, distances, RoPE, pairs (seq_form.h) */
    uint32_t flags;    /* KVC_SEQ_* that it takes */

    /* ---- creating, freeing ---- */

    /* After the common part of a new sequence. Return: 0; -ENOMEM, -EOPNOTSUPP, -EBUSY, -EIO. */
    int (*init)(struct kvc_seq *s);

    /* Frees what init() and later operations made, also after init() failed. */
    void (*deinit)(struct kvc_seq *s);

    /* @to, new and with as long a tail, gets lengths and tail of @from. Return: 0; -EIO. */
    int (*copy)(struct kvc_seq *to, const struct kvc_seq *from);

    /* ---- checks ---- */

    /* Return: 0; -EINVAL with a sentence: an input of the sequence was not finite. */
    int (*check_sound)(const struct kvc_seq *s);

    /* Before an operation that waits or allocates.
     * Return: 0; -EBUSY with a sentence: the stream is being captured. */
    int (*check_idle)(const struct kvc_seq *s);

    /* ---- appending ---- */

    /* client_ops.seqs begins and ends a call; the kind of each sequence stages and applies its item. */
    int (*append_begin)(struct seq_append_call *call);

    /* Does everything that can fail: stores rows behind the length, claims pages. An item
     * without tokens is not staged. */
    int (*append_stage)(const struct seq_append_call *call, const kvc_append_item *item);

    /* Adds the new rows to the length, after all items were staged. */
    void (*append_apply)(struct seq_append_call *call, const kvc_append_item *item);

    int (*append_end)(struct seq_append_call *call);

    /* ---- tail and pages ---- */

    /* Packs layer @layer up to @n_chunks, whose rows are in the tail and whose pages are claimed.
     * Return: 0; on a GPU -EIO. */
    int (*pack)(struct kvc_seq *s, uint32_t layer, size_t n_chunks);

    /* Gives every layer's tail room for exactly @rows rows; a failure changes nothing.
     * Return: 0; -ENOMEM, -EBUSY, -EIO. */
    int (*resize_tail)(struct kvc_seq *s, size_t rows);

    /* Only the first @n pages stay. Called before the others are released. */
    void (*pages_dropped)(struct kvc_seq *s, size_t n);

    /* Pages or lengths changed outside append_*(): the GPU's copy is brought up to date.
     * Return: 0; -ENOMEM, -EIO. */
    int (*refresh)(struct kvc_seq *s);
    int (*lengths_changed)(struct kvc_seq *s);

    /* Cuts to @n tokens or, if they are packed, to the chunk boundary below. Return: the new length. */
    size_t (*truncate)(struct kvc_seq *s, size_t n);

    /* ---- reading, with checked arguments ---- */

    /* Tokens of a layer that queries may attend to, those of a graph that is being captured included. */
    size_t (*attended_length)(const struct kvc_seq *s, uint32_t layer);

    /* For client_ops.seqs: all items of a call. Return: 0; -ENOMEM, -EIO ... */
    int (*attend)(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                  const kvc_attend_options *o);

    /* kvc_seq_read() */
    int (*read)(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out);

    /* kvc_seq_read_blocks(); NULL on a GPU. Return: 0; -ENOMEM. */
    int (*read_blocks)(const struct seq_read_call *call);

    /* For seq_host_read_blocks(), on any thread; NULL on a GPU. Rows [n, d] of one head in binary32, before
     * RoPE and half-split, of positions inside the chunk that read_chunk() prepared. */
    void (*read_chunk)(const struct kvc_seq *s, uint32_t layer, size_t chunk, struct chunk_work *w);
    void (*read_rows)(const struct kvc_seq *s, const struct seq_rows *r, float *rows, struct chunk_work *w);

    /* Adds the bytes of the sequence to *u; u->tokens is set. */
    void (*count_usage)(const struct kvc_seq *s, kvc_usage *u);

    /* ---- one piece of seq_host_attend(), NULL on a GPU ---- */

    bool attends_by_pages; /* a call may be divided by pages, not only by queries */
    size_t (*attend_scratch_bytes)(const struct kvc_seq *s, size_t n_q);
    void (*attend_piece)(const struct seq_attend_call *c, const struct seq_attend_piece *p, void *scratch);
};

/* For operations that a kind does not need. */
int seq_ops_nothing(struct kvc_seq *s);
int seq_ops_check_nothing(const struct kvc_seq *s);
int seq_ops_append_nothing(struct seq_append_call *call);
void seq_ops_drop_nothing(struct kvc_seq *s, size_t n);
