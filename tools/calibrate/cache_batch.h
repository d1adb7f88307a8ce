/*
 * A cache of many sequences that grow in lock step: row i of every append and attend is the next token of
 * sequence i. One pass of the engine then decodes a token of each, and reads the weights once for all.
 */
#pragma once

#include <stddef.h>

#include "tools/engine/engine.h"

struct errmsg;
struct batch_cache;

/* @n_sequences of at most @n_max tokens each; binary32, exact. */
int batch_cache_new(const struct geometry *g, size_t n_sequences, size_t n_max,
                    struct batch_cache **ret_cache, struct errmsg *e);
struct batch_cache *batch_cache_free(struct batch_cache *c);
static inline void batch_cache_freep(struct batch_cache **c)
{
    *c = batch_cache_free(*c);
}
struct kv_cache batch_cache_ops(struct batch_cache *c);

/* Bytes that such a cache takes when full. */
uint64_t batch_cache_bytes(const struct geometry *g, size_t n_sequences, size_t n_max);
