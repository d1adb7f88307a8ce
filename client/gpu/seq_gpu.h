/*
 * A sequence in GPU memory: the pages and tails of seq.h, on the device (client/gpu/gpu.h).
 *
 * The host knows every length, in struct layer and struct seq_gpu_layer, and decides by them what is claimed,
 * packed and grown. Kernels read lengths from a struct device_seq per layer in device memory and advance them
 * by the same rule (append_step()), so that their launches can be captured in a CUDA graph and replayed. What
 * changes by other means than appending, pages that were claimed, moved or dropped, a cut, another buffer for
 * the tail, is written to the device before the next use: seq_gpu_refresh().
 *
 * Nothing here waits for the device. What goes wrong in a kernel is a flag that somebody reads later:
 * seq_gpu_judge().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/gpu/gpu.h"
#include "client/kvcobra.h"
#include "gpu/cuda/kernels/launch.h"

struct kvc_client;
struct kvc_seq;
struct model_table;

/* Positions are 32 bits wide in kernels, and sums of two of them must be too. */
#define SEQ_GPU_TOKENS_MAX ((size_t) 1 << 31)

struct seq_gpu_layer {
    uint32_t first_row; /* of the tail's buffer: where the exact rows begin */
    size_t n_captured;  /* tokens that appends captured in a graph will add, since the last replay */
};

struct seq_gpu {
    struct gpu_memory
        plans;              /* struct device_seq [n_layers]: at one place for life, captured launches name it */
    struct gpu_memory tail; /* [n_layers][2][shard heads][tail_rows][d] binary16 of x - mean */
    struct gpu_memory addresses; /* uint8_t *[n_addresses_max] of payloads */
    size_t n_addresses_max;
    const uint8_t **written; /* [n_addresses_max] what stands there; the first n_written count */
    size_t n_written;
    uint64_t pages_moved;   /* client->pages_moved when it was right */
    struct device_seq *image; /* [n_layers] to write plans from */
    bool plans_stale;       /* plans is not what the host knows */
    struct seq_gpu_layer *layers;
    uint32_t flag; /* that appending raises; gpu_flag_take() */
    bool has_flag;
    bool is_faulty; /* it was raised */
    size_t n_sound; /* tokens that it was down for */
};

/* ---- seq_gpu.c: life, and what the device is told ---- */

/* What a new sequence of a GPU client needs beside a tail. Return: 0; as gpu_alloc(), with a sentence. */
int seq_gpu_init(struct kvc_seq *s);
void seq_gpu_deinit(struct kvc_seq *s);

/*
 * Writes to the device what it does not know yet: pages that were claimed, published or moved, lengths.
 * Whoever reads or appends does; publishing does at once for all sequences, before slots of moved pages are
 * given back. Never while the stream is captured. Return: 0; -ENOMEM, -EIO with a sentence, and a later call
 * tries again.
 */
int seq_gpu_refresh(struct kvc_seq *s);

/* The first @n pages are those that they were. */
void seq_gpu_keep_addresses(struct kvc_seq *s, size_t n);

/* The tail with room for @rows rows in every layer, what is in it kept. Return: 0; as gpu_alloc(), nothing
 * changed. */
int seq_gpu_resize_tail(struct kvc_seq *s, size_t rows);

/* @to, new and with as long a tail, gets lengths, tail and what is known of its soundness. Return: 0; as
 * cuda_fail(). */
int seq_gpu_copy(struct kvc_seq *to, const struct kvc_seq *from);

/* Layers were set to other lengths: cut, or matched. Return: 0; as seq_gpu_refresh(). */
int seq_gpu_lengths_changed(struct kvc_seq *s);

/**
 * seq_gpu_judge() - what kernels found wrong with the sequence, after gpu_flags_read()
 * Return: 0; -EINVAL with a sentence: an input was not finite, or a captured graph ran without its replay.
 */
int seq_gpu_judge(struct kvc_seq *s);

/* The same as far as it is known already, for calls that do not wait. */
int seq_gpu_check_sound(struct kvc_seq *s);

/* ---- seq_gpu_append.c ---- */

/* Memory of the host for an append to @n sequences. Return: 0; -ENOMEM with a sentence. */
int seq_gpu_append_reserve(struct kvc_client *c, size_t n);

/* What one of them needs: room in the tail, pages. @capturing: it is the next replay's. Return: 0; as
 * kvc_seq_append(). */
int seq_gpu_append_prepare(const kvc_append_item *item, uint32_t layer, bool capturing);

/**
 * seq_gpu_append() - queues an append that was prepared
 *
 * One or three launches for as many sequences of a table as one takes. Return: 0; as cuda_fail(): what was
 * launched before stands.
 */
int seq_gpu_append(struct kvc_client *c, const kvc_append_item *items, size_t n, uint32_t layer,
                   enum kvc_dtype dtype, bool capturing);

/* seq_pack_layer(). Return: 0; as cuda_fail(). */
int seq_gpu_pack_layer(struct kvc_seq *s, uint32_t layer, size_t n_chunks);

/* ---- seq_gpu_attend.c ---- */

/* kvc_seq_attend_batch() with checked arguments. */
int seq_gpu_attend(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                   const kvc_attend_options *o);

/* What decode steps of a table run on, as profilers name it: "cuda kvc_attend90_128_rows_8". */
const char *seq_gpu_kernel_name(struct kvc_client *c, struct model_table *t);

/* ---- seq_gpu_read.c ---- */

/* kvc_seq_read() with checked arguments. */
int seq_gpu_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out);
