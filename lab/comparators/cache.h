/*
 * The cache of an evaluation in which tokens are decoded from another format: a struct kv_cache for the
 * engine.
 *
 * A query sees the first n_sink tokens and, by n_recent, the newest tokens exactly, as in kvc_eval_options.
 * Formats that code several tokens together (block_tokens) begin blocks at multiples of that number. With
 * n_recent 0 a query sees every token with the ranges of its complete block, or of the block's tokens so far:
 * ranges may come from tokens after the query, values never do. Otherwise a block stays exact until it is
 * complete and has no recent token.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tools/engine/engine.h"

struct comparator_codec;
struct comparator_cache;
struct errmsg;

struct comparator_cache_options {
    uint32_t n_sink;
    int32_t n_recent;               /* -1: 64 to 127, as in a decode step of the product */
    uint32_t sides;                 /* bits of 1 << enum side: coded; the others are exact; 0 = both */
    uint32_t first_layer, n_layers; /* coded; n_layers 0 = all */
};

/* @codec: borrowed. @n_max: most tokens. */
int comparator_cache_new(const struct comparator_codec *codec, const struct comparator_cache_options *o,
                         size_t n_max, struct comparator_cache **ret_cache, struct errmsg *e);
struct comparator_cache *comparator_cache_free(struct comparator_cache *c);
static inline void comparator_cache_freep(struct comparator_cache **c)
{
    *c = comparator_cache_free(*c);
}

struct kv_cache comparator_cache_ops(struct comparator_cache *c);

/* Tokens that every layer has. */
size_t comparator_cache_tokens(const struct comparator_cache *c);

/* Bits of coded tokens, with metadata, and their numbers, over the coded layers and sides. */
void comparator_cache_usage(const struct comparator_cache *c, uint64_t *ret_bits, uint64_t *ret_numbers);
