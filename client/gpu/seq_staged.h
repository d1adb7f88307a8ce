/*
 * A sequence of a client on a GPU whose pages are in host memory: seq.h's pages in the arena, the heap and
 * the daemon's pool, like a sequence of the host, and its tail on the GPU.
 *
 * New tokens are stored as rows of the tail, and chunks are packed from there into device memory, all layers
 * of a chunk into one page (gpu_ring.h: a staged page). When the last layer has packed it, the page is copied
 * to the ring in one piece, beside the caller's stream, and from there to the host's page, from which it is
 * published like any other. Reading takes pages the other way, and decodes them on the GPU. So a fifth of the
 * bytes cross the bus, and the daemon needs no memory of the GPU.
 *
 * The host knows all lengths and passes them to the kernels, so nothing here can be captured in a graph. An
 * append queues work and waits for none: neither for the daemon nor for the ring. A commit, a fork and a read
 * wait for copies.
 *
 * The row of a position is its remainder by tail_rows: rows never move. An append that does not fit into the
 * tail stores its rows in memory that all layers use in turn, packs all chunks that are due, and leaves
 * the rest in the tail; so the tail stays as long as two chunks, however long a prompt is.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/gpu/gpu.h"
#include "client/gpu/seq_sound.h"
#include "client/kvcobra.h"
#include "gpu/cuda/kernels/launch.h"

struct kvc_client;
struct kvc_seq;
struct model_table;
struct seq_append_call;
struct seq_read_call;

/* Positions are 32 bits wide in kernels, and so are sums of two of them. */
#define SEQ_STAGED_TOKENS_MAX ((size_t) 1 << 31)

struct seq_staged {
    struct gpu_memory tail; /* [n_layers][2][shard heads][tail_rows][d] binary16 of x - mean */
    struct seq_sound sound;
    size_t n_sent; /* leading chunks whose pages have their bytes, or whose copy has begun */
};

/* ---- seq_staged.c ---- */

/* seq_ops.init. Return: 0; -EINVAL: the ring is too small for a page of the table; as gpu_alloc(). */
int seq_staged_init(struct kvc_seq *s);
void seq_staged_deinit(struct kvc_seq *s);

/* seq_ops.resize_tail, seq_ops.copy, seq_ops.pages_dropped, seq_ops.lengths_changed, seq_ops.check_sound,
 * seq_ops.check_idle */
int seq_staged_resize_tail(struct kvc_seq *s, size_t rows);
int seq_staged_copy(struct kvc_seq *to, const struct kvc_seq *from);
void seq_staged_pages_dropped(struct kvc_seq *s, size_t n);
int seq_staged_lengths_changed(struct kvc_seq *s);
int seq_staged_check_sound(const struct kvc_seq *s);
int seq_staged_check_idle(const struct kvc_seq *s);

/* The tail of a layer as kernels read it. */
struct launch_row_buffer seq_staged_tail(const struct kvc_seq *s, uint32_t layer);

/* The caller's form of keys, LAUNCH_AFTER_ROPE and LAUNCH_INTERLEAVED. */
uint32_t seq_staged_form(const struct kvc_seq *s);

/* Begins the copies of pages that all layers have packed, as long as the ring has room: waits for nothing.
 * Return: 0; -ENOMEM, -EIO. */
int seq_staged_send(struct kvc_seq *s);

/* Waits until all packed pages have their bytes in host memory. Return: 0; -ENOMEM, -EIO. */
int seq_staged_finish(struct kvc_seq *s);

/* client_ops.publish: seq_staged_finish(), then publish_arena(). */
int seq_staged_publish(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n);

/* ---- seq_staged_append.c: seq_ops.append_*, seq_ops.pack ---- */

int seq_staged_append_begin(struct seq_append_call *call);
int seq_staged_append_stage(const struct seq_append_call *call, const kvc_append_item *item);
void seq_staged_append_apply(struct seq_append_call *call, const kvc_append_item *item);
int seq_staged_append_end(struct seq_append_call *call);
int seq_staged_pack(struct kvc_seq *s, uint32_t layer, size_t n_chunks);

/* ---- seq_staged_read.c ---- */

/* seq_ops.read_blocks */
int seq_staged_read_blocks(const struct seq_read_call *call);
