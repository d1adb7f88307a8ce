/*
 * Pairs of equal sequences: one of an embedded client on the CPU, which other tests compare with oracles, and
 * one of a client on the GPU. Packed bytes and decoded vectors of both must be equal to the bit, and
 * attention must agree within the error bound of its kernels.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"
#include "client/gpu/gpu.h"
#include "client/kvcobra.h"

struct gpu_pair_shape {
    uint32_t n_layers, n_heads, n_kv_heads, d;
    uint32_t n_rot; /* 0: all of d */
    uint32_t n_sink;
    double bpd;
    enum prediction v_from;
    uint32_t first_head, n_heads_here; /* shard; 0 heads: all */
    uint32_t pages;                    /* enum kvc_gpu_pages of the GPU's client */
    size_t ring_bytes;
    unsigned state_bits; /* of trellises, with 4 sinks; 0: scalar levels */
    unsigned exact;      /* enum kvc_exact of an exact table; 0: a table with codes */
};

struct gpu_pair {
    struct geometry g;
    uint32_t n_heads; /* KV heads of the shard */
    kvc_client *cpu, *gpu;
    kvc_model *cpu_model, *gpu_model;
};

/* One text in both clients. */
struct seq_pair {
    kvc_seq *cpu, *gpu;
    uint64_t text; /* selects the vectors of tokens that are appended from now on */
};

/* Failures are asserted, except of opening the GPU's client if @ret_err is not NULL: it gets the first error,
 * and that client is closed. */
void gpu_pair_open(struct gpu_pair *t, const struct gpu_pair_shape *shape, int *ret_err);
struct gpu_pair gpu_pair_new(const struct gpu_pair_shape *shape);
void gpu_pair_free(struct gpu_pair *t);

/* Models with another table in the clients of @t, which @t frees. @shape: as that of @t,
 * except for bpd, sinks, prediction and trellises. */
struct gpu_pair gpu_pair_other(const struct gpu_pair *t, const struct gpu_pair_shape *shape);

struct seq_pair seq_pair_new(const struct gpu_pair *t, uint64_t text);
struct seq_pair seq_pair_fork(const struct seq_pair *s, uint64_t text);
void seq_pair_free(struct seq_pair *s);

/* Input vectors of positions @first .. @first + n - 1: keys and values [n, shard heads * d], queries [n,
 * shard query heads * d]. malloc'ed. */
float *gpu_pair_input(const struct gpu_pair *t, uint64_t text, uint32_t layer, unsigned kind, size_t first,
                      size_t n);

/* Device memory with @bytes of @from; freed by gpu_pair_give(). */
struct gpu_memory gpu_pair_take(const struct gpu_pair *t, const void *from, size_t bytes);
void gpu_pair_give(const struct gpu_pair *t, struct gpu_memory *m);

/* Appends @n more tokens in all layers, or in one. Return: what both calls returned. */
int seq_pair_append(const struct gpu_pair *t, struct seq_pair *s, enum kvc_dtype dtype, size_t n);
int seq_pair_append_layer(const struct gpu_pair *t, struct seq_pair *s, uint32_t layer, enum kvc_dtype dtype,
                          size_t n);

/* The newest @n_q[i] tokens of @n sequences attend in @layer, in one batch; results are
 * compared with attention in binary64. */
bool gpu_pair_attend(const struct gpu_pair *t, struct seq_pair *seqs, const size_t *n_q, size_t n,
                     uint32_t layer, uint32_t window);

/* Whether both sequences read alike in a range of one layer and side; whether their usage is alike, but for
 * pages that only the host claims ahead; and whether they are alike in everything: lengths, packed bytes,
 * reads, usage. */
bool seq_pair_reads_alike(const struct gpu_pair *t, const struct seq_pair *s, uint32_t layer,
                          enum kvc_side side, size_t first, size_t n);
bool seq_pair_usage_is_alike(const struct seq_pair *s);
bool seq_pair_is_alike(const struct gpu_pair *t, const struct seq_pair *s);
