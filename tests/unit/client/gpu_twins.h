/*
 * The same sequences twice: of an embedded client on the CPU, which other tests compare with oracles, and of
 * one on the GPU. Both must hold the same: packed bytes and decoded vectors to the bit, attention within the
 * error bound of its kernels.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table.h"
#include "client/gpu/gpu.h"
#include "client/kvcobra.h"

struct twins_shape {
    uint32_t n_layers, n_heads, n_kv_heads, d;
    uint32_t n_rot; /* 0: all of d */
    uint32_t n_sink;
    double bpd;
    enum prediction v_from;
    uint32_t first_head, n_heads_here; /* shard; 0 heads: all */
};

struct twins {
    struct geometry g;
    uint32_t n_heads; /* KV heads of the shard */
    kvc_client *cpu, *gpu;
    kvc_model *cpu_model, *gpu_model;
};

/* One text in both clients. */
struct twin {
    kvc_seq *cpu, *gpu;
    uint64_t text; /* of its tokens from here on */
};

/* Everything asserts, but opening the GPU's part where @ret_err says what its first failure was: then that is
 * closed already. */
void twins_open(struct twins *t, const struct twins_shape *shape, int *ret_err);
struct twins twins_new(const struct twins_shape *shape);
void twins_free(struct twins *t);

/* Another table's models in the same clients, which @t frees. @shape: as that of @t, but for bpd, sinks and
 * prediction. */
struct twins twins_other(const struct twins *t, const struct twins_shape *shape);

struct twin twin_new(const struct twins *t, uint64_t text);
struct twin twin_fork(const struct twin *s, uint64_t text);
void twin_free(struct twin *s);

/* Vectors of a position: one token's, in any layer, [shard heads * d] per side, queries [shard query heads *
 * d]. */
float *twins_input(const struct twins *t, uint64_t text, uint32_t layer, unsigned kind, size_t first,
                   size_t n);

/* Device memory with @bytes of @from; freed by twins_give(). */
struct gpu_memory twins_take(const struct twins *t, const void *from, size_t bytes);
void twins_give(const struct twins *t, struct gpu_memory *m);

/* Appends @n more tokens in all layers, or in one. Return: what both calls returned. */
int twin_append(const struct twins *t, struct twin *s, enum kvc_dtype dtype, size_t n);
int twin_append_layer(const struct twins *t, struct twin *s, uint32_t layer, enum kvc_dtype dtype, size_t n);

/* The newest @n_q[i] tokens of @n sequences attend in @layer, in one batch; results are compared with
 * attention in binary64. */
bool twins_attend(const struct twins *t, struct twin *seqs, const size_t *n_q, size_t n, uint32_t layer,
                  uint32_t window);

/* Compare one range of one layer and side; and everything that a sequence holds: lengths, packed bytes,
 * reads, usage. */
bool twin_reads_alike(const struct twins *t, const struct twin *s, uint32_t layer, enum kvc_side side,
                      size_t first, size_t n);
bool twin_is_alike(const struct twins *t, const struct twin *s);
