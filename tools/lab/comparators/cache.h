/*
 * The cache of an evaluation in which tokens are read back from another format: a struct kv_cache for the
 * engine.
 *
 * Which tokens a query sees exactly is as in kvc_eval_options: the first n_sink and, by n_recent, the newest.
 * Formats that code several tokens together (block_tokens) do so from positions that are multiples of it.
 * With n_recent 0 a query sees every token as its block is once it is complete, or as far as the sequence
 * goes: its own block's ranges may come from tokens after it, its values never. Otherwise a block is coded
 * when it is complete and none of it is recent any more; until then it is exact.
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
    int32_t n_recent;               /* -1: as the product's decode step, 64 to 127 */
    uint32_t sides;                 /* bits of 1 << enum side: coded; the others are exact; 0 = both */
    uint32_t first_layer, n_layers; /* coded; n_layers 0 = all */
};

/* @codec: borrowed. @n_max: tokens at most. */
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

/* What coded tokens take, metadata counted, and how many numbers they are: layers and sides that are coded.
 */
void comparator_cache_usage(const struct comparator_cache *c, uint64_t *ret_bits, uint64_t *ret_numbers);
