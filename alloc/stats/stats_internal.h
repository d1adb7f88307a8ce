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

#include "alloc/stats/stats.h"

/* A sampled token. Tokens with the smallest hashes are kept; document and position
 * break ties and identify the token. */
struct sample_id {
    uint64_t hash, document, position;
};

/*
 * The tokens of one source of text, or of several small ones: their moments stay apart from those of other
 * sources, so that solving can leave a source out. Identified by kind and digest, and sorted by them.
 */
struct stats_domain {
    uint8_t digest[DIGEST_BYTES]; /* of the text; zeros: SOURCE_REST, or windows whose source was not named */
    uint32_t kind;                /* enum stats_source_kind */
    uint64_t n_tokens;            /* above 0 */
    double *mean;                 /* [n_head_sides, d] */
    double *scatter;              /* [n_head_sides, d, d] centred */
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
    uint32_t domain;           /* of its tokens; if n > n_first */
    struct sample_pick *picks; /* [n_slots] room, n_picks used */
    size_t n_picks;
};

struct stats {
    struct stats_options o;
    uint64_t n_tokens;
    uint64_t n_fisher; /* gradients per head-side; 0: no Fisher section */
    double *mean;      /* [n_head_sides, d] of all domains together */
    double *scatter;   /* [n_head_sides, d, d] centred */
    struct stats_domain domains[STATS_DOMAINS_MAX];
    uint32_t n_domains; /* 0 with cross */
    /* Sums of metrics are rounded to binary32 after each window: what a file holds is what memory holds. */
    double *query;  /* [n_layers, n_kv_heads, d, d] sum of q q' over tokens and the group; or NULL */
    double *metric; /* [n_head_sides, d, d] attention metric; or NULL */
    double *output; /* [n_head_sides, d, d] output metric; or NULL */
    double *fisher; /* [n_head_sides, d, d] sum of g g'; or NULL */
    struct depth_sums *depth;     /* [n_layers, 2] */
    struct stats_source *sources; /* [n_sources] sorted */
    size_t n_sources;
    /* [n_layers, n_kv_heads, d, d] scatter of V's rows with K's columns, in statistics made of moments,
     * which have no vectors; else NULL */
    double *cross;
    struct sample_id *ids;    /* [n_slots], by slot; the first n_held are in use */
    uint8_t *domain_of;       /* [n_slots] */
    uint16_t *samples;        /* [n_head_sides, n_slots, d] binary16 of (x - offset) / scale */
    float *offset;            /* [n_head_sides, d] means of the first window */
    float *scale;             /* [n_head_sides] powers of two */
    bool has_offset;          /* offset and scale are set */
    size_t n_held, n_slots;   /* n_slots: up to o.n_samples; after parsing, as many as the file holds */
    bool has_file_digest;     /* nothing was added since the file was read whose digest is file_digest */
    bool mixed_seeds;         /* merged: hashes of samples have several seeds */
    double kl_per_distortion; /* 0: not measured */

    uint8_t file_digest[DIGEST_BYTES];
    /* with cross: digests of the moments and of the metric's statistics */
    uint8_t moments_digest[DIGEST_BYTES], metric_digest[DIGEST_BYTES];
    bool has_metric_digest;

    /* while adding; not stored */
    double *wo;    /* [n_layers, n_heads, d, d] W_O,h' W_O,h; NULL until the first is set */
    bool *have_wo; /* [n_layers] */
    struct window window;
    struct stats_domain next; /* kind and digest of the source of the windows that follow */
    bool spoiled;             /* a window failed after its first layer: the sums hold a part of it */
};

static inline bool stats_wants_queries(const struct stats *s)
{
    return s->o.want_attention || s->o.want_output;
}

/* The stored form of samples of one head-side, [n_slots, d]. NULL: the statistics hold no samples. */
static inline uint16_t *stats_sample_rows(const struct stats *s, uint32_t head_side)
{
    return s->samples ? s->samples + head_side * s->n_slots * s->o.geometry.d : NULL;
}

/* The sampled vectors [n_held, d] of one head-side; the caller frees them. NULL: out of memory. */
float *stats_sample_load(const struct stats *s, uint32_t head_side);

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

/* The domain of kind and digest of @id, which is made if it does not exist. If there are STATS_DOMAINS_MAX,
 * @id joins SOURCE_REST, which the smallest one becomes first if there is none. Return: 0; -ENOMEM. */
int stats_domain_get(struct stats *s, const struct stats_domain *id, uint32_t *ret_domain);
/* s->mean and s->scatter := those of all domains together. */
void stats_domain_sum(struct stats *s);
/* Adds the domains of @other. @ret_map: [other->n_domains] their numbers in @s. Return: 0; -ENOMEM. */
int stats_domain_merge(struct stats *s, const struct stats *other, uint32_t *ret_map);
int stats_domain_compare(const struct stats_domain *a, const struct stats_domain *b);

/* Rounds sums of a metric to binary32. False: one of them is too large for binary32. */
bool stats_round_sums(double *sums, size_t n);

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
