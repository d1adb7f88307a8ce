/*
 * Attention over one window for the attention and output metrics (DESIGN 3.1): softmax over one window of one
 * KV head without a [T, T] array, probabilities of sampled keys, and weighted outer products of queries in a
 * key's own frame. Shared by metric_pass.c and metric_sums.c.
 *
 * Order: pass_init() once per window and layer; for each KV head pass_keys(), then pass_queries() and
 * pass_softmax() for each query head of its group; then pass_sample() for blocks of sampled keys and
 * pass_add_key() for each of them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

#define PASS_KEY_BLOCK 128 /* keys of one block of scores */

/* All [n, ...] arrays row-major. */
struct pass {
    const struct geometry *g;
    size_t n, n_first, d, group;
    float *cosine, *sine; /* [n, n_rot/2] of R(position) */
    float *key;           /* [n, d] rotated keys of one KV head */
    float *query;         /* [group, n, d] rotated queries times the attention scale */
    float *length;        /* [group, n] squared lengths of these queries */
    float *max, *denom;   /* [group, n] softmax of each query: largest score, sum of exp(score - max) */
    float *squares;       /* [group, n] sum of p^2 over the keys after the sinks */
    float *scores;        /* [n, PASS_KEY_BLOCK] */
    float *probs;         /* [group, PASS_KEY_BLOCK, n] p of a block of sampled keys */
    float *weights;       /* [group, PASS_KEY_BLOCK, n] weight of each query in a key's metric */
    float *sampled;       /* [PASS_KEY_BLOCK, d] rotated sampled keys */
    float *rows;          /* [UPDATE_ROWS, d] sqrt(weight) * query */
    float *update;        /* [d, d] */
    float *value;         /* [n, d] values of the KV head less their mean; with outputs */
    float *output;        /* [group, n, d] sum p v of each query, v less its mean; with outputs */
    double *frame;        /* [d, d] the update in a key's own frame */
    float *block;         /* all of the floats above */
};

/* Bytes that pass_init() takes. */
uint64_t pass_bytes(const struct geometry *g, size_t n, bool outputs);

/* @outputs: also sums of values. Return: 0; -ENOMEM. */
int pass_init(struct pass *p, const struct geometry *g, size_t n, size_t n_first, bool outputs);
void pass_deinit(struct pass *p);

/* Rotates the keys of one KV head and, with outputs, centres its values.
 * @k, @v: [n, n_kv_heads, d] of the layer. */
void pass_keys(struct pass *p, uint32_t head, const float *k, const float *v);

/* Rotates the queries of head @j of the group, which is @head of the layer.
 * @q: [n, n_heads, d] of the layer. */
void pass_queries(struct pass *p, size_t j, uint32_t head, const float *q);

/* Softmax of head @j: max, denom, squares and, with outputs, output. */
void pass_softmax(struct pass *p, size_t j);

/* Probabilities of the keys at[0..n_keys), ascending, for all heads of the group; entries of queries before a
 * key stay undefined. */
void pass_sample(struct pass *p, const size_t *at, size_t n_keys);

/* sum [d, d] += scale times the sum over the group and m >= @at of weight q~ q~', for key @i of the block at
 * position @at, q~ = R(at)' R(m) q attn_scale. */
void pass_add_key(struct pass *p, size_t i, size_t at, double scale, double *sum);
