/*
 * A sequence in GPU memory: the pages and tails of seq.h, on the device (client/gpu/gpu.h).
 *
 * The host knows every length, in struct layer and struct seq_gpu_layer, and decides by them what is claimed,
 * packed and grown. Kernels read lengths from a struct device_seq per layer in device memory and advance them
 * by the same rule (append_step()), so that their launches can be captured in a CUDA graph and replayed.
 * Changes other than by appending (pages claimed, moved or dropped, a cut, a new buffer for the tail) are
 * written to the device before the next use: seq_gpu_refresh().
 *
 * No function here waits for the device. Kernels report errors in a flag that is read later (seq_sound.h).
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

/* Positions are 32 bits wide in kernels, and so are sums of two of them. */
#define SEQ_GPU_TOKENS_MAX ((size_t) 1 << 31)

struct seq_gpu_layer {
    uint32_t first_row; /* of the tail's buffer: the first exact row */
    size_t n_captured;  /* tokens of appends that were captured in a graph since the last replay */
};

struct seq_gpu {
    struct gpu_memory device_seqs; /* struct device_seq [n_layers]; never moves: captured launches name it */
    struct gpu_memory tail;        /* [n_layers][2][shard heads][tail_rows][d] binary16 of x - mean */
    struct gpu_memory addresses;   /* uint8_t *[n_addresses_max] of payloads */
    size_t n_addresses_max;
    const uint8_t **written; /* [n_addresses_max] what addresses holds; the first n_written are valid */
    size_t n_written;
    uint64_t pages_moved;     /* client->pages_moved as of the last refresh */
    struct device_seq *image; /* [n_layers] from which device_seqs is written */
    bool is_stale;            /* device_seqs differs from what the host knows */
    struct seq_gpu_layer *layers;
    struct seq_sound sound;
};

/* ---- seq_gpu.c ---- */

/* seq_ops.init: what a sequence has besides a tail. Return: 0; as gpu_alloc(), with a sentence. */
int seq_gpu_init(struct kvc_seq *s);
void seq_gpu_deinit(struct kvc_seq *s);

/**
 * seq_gpu_refresh() - write to the device what changed on the host: pages that were claimed, published or
 * moved, and lengths
 *
 * Called before the sequence is read or appended to; publishing calls it at once for all sequences, before
 * slots of moved pages are given back. Never while the stream is captured.
 * Return: 0; -ENOMEM, -EIO with a sentence, and a later call repeats it.
 */
int seq_gpu_refresh(struct kvc_seq *s);

/* seq_ops.pages_dropped */
void seq_gpu_keep_addresses(struct kvc_seq *s, size_t n);

/* seq_ops.resize_tail. Return: 0; as gpu_alloc(), nothing changed. */
int seq_gpu_resize_tail(struct kvc_seq *s, size_t rows);

/* seq_ops.copy, soundness included. Return: 0; as cuda_fail(). */
int seq_gpu_copy(struct kvc_seq *to, const struct kvc_seq *from);

/* seq_ops.lengths_changed. Return: 0; as seq_gpu_refresh(). */
int seq_gpu_lengths_changed(struct kvc_seq *s);

/* seq_ops.check_sound */
int seq_gpu_check_sound(const struct kvc_seq *s);

/* ---- seq_gpu_append.c: seq_ops.append_*, seq_ops.pack ---- */

int seq_gpu_append_begin(struct seq_append_call *call);
int seq_gpu_append_stage(const struct seq_append_call *call, const kvc_append_item *item);
void seq_gpu_append_apply(struct seq_append_call *call, const kvc_append_item *item);
int seq_gpu_append_end(struct seq_append_call *call);
int seq_gpu_pack(struct kvc_seq *s, uint32_t layer, size_t n_chunks);

/* ---- seq_gpu_attend.c ---- */

/* seq_ops.attend */
int seq_gpu_attend(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                   const kvc_attend_options *o);

/* client_ops.kernel_name: as profilers name it, "cuda kvc_attend80_128_rows_4" */
const char *seq_gpu_kernel_name(struct kvc_client *c, struct model_table *t);

/* ---- seq_gpu_read.c ---- */

/* seq_ops.read */
int seq_gpu_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out);
