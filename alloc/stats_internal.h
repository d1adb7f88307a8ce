/*
 * The members of statistics, shared by the files that fill, merge, store and read them (stats*.c,
 * metric_sums.c, metric.c, solve*.c). Callers use stats.h.
 *
 * Sums, not averages, so that merging adds. One token count serves all:
 * every window passes every layer and head.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/stats.h"

/* A sampled token. Tokens with the smallest hashes are kept; document and position
 * break ties and identify the token. */
struct sample_id {
    uint64_t hash, document, position;
};

/* Sums over measurements of one (layer, side); n = 0: not measured. */
struct depth_sums {
    double kl, D;
    uint64_t n;
};

/* A drawn token of the current window: its row in the window and its slot in samples. */
struct sample_pick {
    size_t row, slot;
};

/* The window that is being added, layer by layer. */
struct window {
    uint64_t document, position;
    size_t n;
    size_t n_first;            /* tokens left out at its start: sinks */
    uint32_t next_layer;       /* 0: between windows */
    struct sample_pick *picks; /* [n_slots] room, n_picks used */
    size_t n_picks;
};

struct stats {
    struct stats_options o;
    uint64_t n_tokens;
    uint64_t n_fisher; /* gradients per head-side; 0: no Fisher section */
    double *mean;      /* [n_head_sides, d] */
    double *scatter;   /* [n_head_sides, d, d] centred */
    double *query;     /* [n_layers, n_kv_heads, d, d] sum of q q' over tokens and the group; or NULL */
    double *metric;    /* [n_head_sides, d, d] attention metric; or NULL */
    double *output;    /* [n_head_sides, d, d] output metric; or NULL */
    double *fisher;    /* [n_head_sides, d, d] sum of g g'; or NULL */
    struct depth_sums *depth;     /* [n_layers, 2] */
    struct stats_source *sources; /* [n_sources] sorted */
    size_t n_sources;
    /* [n_layers, n_kv_heads, d, d] scatter of V's rows with K's columns, in statistics made of moments,
     * which have no vectors; else NULL */
    double *cross;
    struct sample_id *ids;  /* [n_slots], by slot; the first n_held are in use */
    float *samples;         /* [n_head_sides, n_slots, d] */
    size_t n_held, n_slots; /* n_slots: up to o.n_samples; after parsing, as many as the file holds */

    /* with cross: digests of the moments and of the metric's statistics */
    uint8_t moments_digest[DIGEST_BYTES], metric_digest[DIGEST_BYTES];
    bool has_metric_digest;

    /* while adding; not stored */
    double *wo;    /* [n_layers, n_heads, d, d] W_O,h' W_O,h; NULL until the first is set */
    bool *have_wo; /* [n_layers] */
    struct window window;
    bool spoiled; /* a window failed after its first layer: the sums hold a part of it */
};

static inline bool stats_wants_queries(const struct stats *s)
{
    return s->o.want_attention || s->o.want_output;
}

static inline float *stats_sample_rows(const struct stats *s, uint32_t head_side)
{
    return s->samples + head_side * s->n_slots * s->o.geometry.d;
}

static inline int sample_id_compare(const struct sample_id *a, const struct sample_id *b)
{
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    if (a->document != b->document)
        return a->document < b->document ? -1 : 1;
    if (a->position != b->position)
        return a->position < b->position ? -1 : 1;
    return 0;
}

/* stats_new() with room for @n_slots sampled tokens at first. */
int stats_alloc(const struct stats_options *o, size_t n_slots, struct stats **ret_stats, struct errmsg *e);

/* Room for at least @n_slots sampled tokens (at most o.n_samples). Return: 0; -ENOMEM. */
int stats_grow_slots(struct stats *s, size_t n_slots);

/* Sorted order of the held samples: @ret_slots [n_held], smallest hash first. */
void stats_sorted_slots(const struct stats *s, size_t *ret_slots);

/* -EINVAL with a sentence if a window is unfinished or failed: such sums
 * must not be stored, merged or solved. */
int stats_check_complete(const struct stats *s, struct errmsg *e);

/* Mean and centred scatter of two disjoint sets, the result in a; n_a + n_b > 0. */
void stats_merge_moments(size_t d, uint64_t n_a, double *mean_a, double *scatter_a, uint64_t n_b,
                         const double *mean_b, const double *scatter_b);

/* Total order of sources by all members but tokens and windows, which add up. 0: the same source. */
int stats_source_compare(const struct stats_source *a, const struct stats_source *b);

/* Allocates the Fisher section unless it exists. Return: 0; -ENOMEM. */
int stats_want_fisher(struct stats *s);

/* Adds the q q' of one window and layer. @q [n, n_heads, d]; rows n_first..n-1 count. */
int stats_add_query(struct stats *s, uint32_t layer, size_t n, size_t n_first, const float *q);

/**
 * metric_sums_add() - adds one window and layer to the attention and output metrics that the options want
 * @q: [n, n_heads, d], @k, @v: [n, n_kv_heads, d], all pre-RoPE; rows n_first..n-1 are the keys that count
 * @key_seed: draws the offset of the sampled keys
 * @residual: [n] mean squares of the residual stream after attention; for the output metric
 */
int metric_sums_add(struct stats *s, uint32_t layer, size_t n, size_t n_first, uint64_t key_seed,
                    const float *q, const float *k, const float *v, const float *residual);

/* Memory that metric_sums_add() takes for a window of @n tokens. */
uint64_t metric_sums_bytes(const struct geometry *g, size_t n, bool want_output);
