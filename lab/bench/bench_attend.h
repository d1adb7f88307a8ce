/*
 * The caches of `kvcobra-lab bench attend`: of one layer or one model, packed and in binary16, with the same
 * decoded keys and values. Uses gpu/ directly: the public API has no binary16 cache to compare with.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"
#include "gpu/attend.h"
#include "gpu/page_layout.h"
#include "lab/bench/attend_f16.h"
#include "tools/bench/timing.h"

struct attend_case {
    const char *name;
    const struct table *table; /* borrowed */
    size_t n_pages;
    struct page_layout layout;
    uint8_t *pages; /* [n_pages] payloads of random codes */
    const uint8_t **payloads;
    size_t n_heads;       /* KV heads of all layers */
    size_t n_tokens;      /* queries: the newest tokens */
    double query_size;    /* standard deviation of their coordinates */
    uint16_t *k, *v;      /* [n_heads][n_pages][d][64], [n_heads][n_pages][64][d], keys rotated */
    float *q, *q_rotated; /* [n_heads][n_tokens][group, d]; rotated to their positions and scaled */
};

/* A table of one layer, in memory only. */
struct attend_synthetic {
    struct table table;
    struct codec *codecs;
    float *matrices;
};

struct attend_synthetic_shape {
    uint32_t d, n_kv_heads, group, k_coords, v_coords;
    bool v_from_k;
    uint32_t n_rot; /* 0: d */
    unsigned bits;  /* of every coordinate, 1..4; 0: 4 */
};

/* Return: 0; -ENOMEM. Both deinit functions accept zeroed structs. */
int attend_synthetic_init(struct attend_synthetic *s, const struct attend_synthetic_shape *shape);
void attend_synthetic_deinit(struct attend_synthetic *s);

/* Gives K bases in two blocks: the first @fast_coords coordinates, a multiple of 8, become those of the
 * planes that turn by more than 0.1 radians per token, as `solve` makes them. The keys of each block keep
 * their size. */
void attend_synthetic_part(struct attend_synthetic *s, uint32_t fast_coords);

/* Allocates as many pages as give a binary16 cache of at least @f16_bytes, for one query token of size 1.
 * Return: 0; -ENOMEM. */
int attend_case_init(struct attend_case *c, const char *name, const struct table *table, size_t f16_bytes);
void attend_case_deinit(struct attend_case *c);

/* Makes queries of @n tokens, 1..CHUNK_TOKENS, and @size (query_size).
 * Return: 0; -ENOMEM, and those before stay. */
int attend_case_set_queries(struct attend_case *c, size_t n, double size);

/* Rows of queries of one KV head: [rows, d] are its q and its output. */
static inline size_t attend_case_rows(const struct attend_case *c)
{
    return c->n_tokens * geometry_group(&c->table->geometry);
}

static inline size_t attend_case_f16_bytes(const struct attend_case *c)
{
    return c->n_heads * c->n_pages * CHUNK_TOKENS * c->table->geometry.d * 2 * sizeof(uint16_t);
}

/* Bytes of the packed codes of the same keys and values. */
size_t attend_case_packed_bytes(const struct attend_case *c);

struct ops;

/* One decode step of KV head @head (of all layers): @out [n_tokens, group, d]. Returns how many pages' values
 * were skipped, counted once for each row; with @all_values none. */
size_t attend_case_packed(const struct attend_case *c, const struct ops *ops, size_t head, bool all_values,
                          void *scratch, float *out);

/* The largest folding numbers of any head. */
void attend_case_folding(const struct attend_case *c, const struct ops *ops, void *scratch,
                         struct attend_folding *ret);
void attend_case_f16(const struct attend_case *c, const struct attend_f16 *f16, size_t head, float *out);

/* ---- times (bench_attend_time.c) ---- */

enum { ATTEND_THREADS_MAX = 64 };

/* Instructions that kernels may use. */
struct attend_set {
    const char *name;
    unsigned mask; /* gpu/cpu.h */
};

struct attend_times {
    const struct attend_case *c; /* the results below are for this case */
    const char *set, *packed_name, *f16_name;
    size_t n_tokens;
    bool measured; /* false: this machine lacks the instructions, or binary16 has no loop for so many rows */
    struct attend_folding folding;
    double error;              /* packed against binary16, normalised */
    double skipped;            /* share of the pages whose values a row skipped, mean over rows */
    struct timing packed, f16; /* seconds of a run over all heads */
    struct timing all_values;  /* of packed pages without skipping; packed if nothing is skipped */
    double n_keys;             /* keys times KV heads of a run */
};

/* Return: COMMAND_OK; COMMAND_FAILED, which has been reported. */
int attend_time_set(const struct attend_case *c, const struct attend_set *set, size_t threads, size_t repeat,
                    struct attend_times *ret);

/* Bytes per second that a thread of the best binary16 kernel reads, by the median of @repeat runs. */
int attend_time_f16_rate(const struct attend_case *c, size_t threads, size_t repeat, double *ret);
