/*
 * An exact cache of many sequences that grow in lock step: row i of every append and attend is the next token
 * of sequence i. One pass of the engine decodes a token of every sequence and reads the weights once. For
 * text that the model generates (corpus_model.c).
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

/* Bytes of a full cache. */
uint64_t batch_cache_bytes(const struct geometry *g, size_t n_sequences, size_t n_max);
