/*
 * Sequences in host memory: their operations, and the parts of them that are files of their own. Evaluation
 * sequences, which live in host memory too, share attention.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/sequence/seq_ops.h"

extern const struct seq_ops seq_host_ops;

/* seq_ops.deinit, seq_ops.append_apply, seq_ops.pack, of sequences that client/gpu/seq_copied.c appends to
 * too */
void seq_host_deinit(struct kvc_seq *s);
void seq_host_append_apply(struct seq_append_call *call, const kvc_append_item *item);
int seq_host_pack(struct kvc_seq *s, uint32_t layer, size_t n_chunks);

/* ---- seq_host_encode.c ---- */

/* Writes the codes of chunks @first .. @end - 1, whose rows stay in the tail, into their pages. */
void seq_host_encode(struct kvc_seq *s, uint32_t layer, size_t first, size_t end);

/* ---- seq_host_attend.c ---- */

/* One KV head of one item: a block of queries over all tokens, or all queries over a run of pages. */
struct seq_attend_piece {
    const kvc_attend_item *item;
    uint32_t head;
    uint32_t n_shares; /* that the head is divided into by pages; 1: the result is complete */
    size_t first_q, n_q;
    size_t first_page, end_page;
    size_t partial; /* offset of its partial result in workers.partials */
    size_t angles;  /* offset of its item's angles there, if its queries are after RoPE */
};

struct seq_attend_call {
    struct workers *workers;
    struct seq_attend_piece *pieces;
    size_t n_pieces;
    uint32_t layer;
    kvc_attend_options options;
};

/* seq_ops.attend, of evaluation sequences too */
int seq_host_attend(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                    const kvc_attend_options *o);

/* seq_ops.attend_scratch_bytes, seq_ops.attend_piece */
size_t seq_host_attend_scratch_bytes(const struct kvc_seq *s, size_t n_q);
void seq_host_attend_piece(const struct seq_attend_call *c, const struct seq_attend_piece *p, void *scratch);

/* seq_ops.attended_length */
size_t seq_host_attended_length(const struct kvc_seq *s, uint32_t layer);

/* ---- seq_host_queries.c ---- */

/* Queries and outputs of a piece as the kernels take them, and the scratch that is left for the kernels. */
struct seq_host_queries {
    const float *q; /* [n_q, g, d] of the KV head, before RoPE, half-split */
    size_t q_stride;
    float *out; /* like q */
    size_t out_stride;
    void *scratch;
};

/* Return: 0; -EINVAL: a query is not finite, with a sentence. */
int seq_host_queries_check(const kvc_attend_item *item, uint32_t layer, struct errmsg *e);

/* Bytes in front of the kernels' scratch, for @n_q queries of one KV head. */
size_t seq_host_queries_bytes(const kvc_attend_item *item, size_t n_q);

/* Floats of RoPE's angles of an item; 0: its queries are before RoPE. */
size_t seq_host_queries_angles(const kvc_attend_item *item);
void seq_host_queries_fill_angles(const kvc_attend_item *item, uint32_t layer, float *angles);

/* The queries of a piece; the outputs go to the caller when seq_host_queries_store() is called. */
struct seq_host_queries seq_host_queries_load(const struct seq_attend_call *c,
                                              const struct seq_attend_piece *p, void *scratch);
void seq_host_queries_store(const struct seq_attend_piece *p, const struct seq_host_queries *x);

/* ---- seq_host_read.c ---- */

/* seq_ops.read, by the sequence's read_blocks(); seq_ops.read_blocks, of evaluation sequences too */
int seq_host_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out);
int seq_host_read_blocks(const struct seq_read_call *call);

/* seq_ops.read_chunk, seq_ops.read_rows */
void seq_host_read_chunk(const struct kvc_seq *s, uint32_t layer, size_t chunk, struct chunk_work *w);
void seq_host_read_rows(const struct kvc_seq *s, const struct seq_rows *r, float *rows, struct chunk_work *w);
