/*
 * An exact cache in which one layer and side is compressed and decoded when it is appended: for the
 * measurement of depth weights (calibration_depth.c).
 */
#pragma once

#include "alloc/table/geometry.h"
#include "tools/engine/engine.h"

struct errmsg;
struct layer_cache;
struct stats;
struct table;

/* @n_sink: first tokens that stay exact. */
int layer_cache_new(const struct geometry *g, size_t n_max, uint32_t n_sink, struct layer_cache **ret_cache,
                    struct errmsg *e);
struct layer_cache *layer_cache_free(struct layer_cache *c);
static inline void layer_cache_freep(struct layer_cache **c)
{
    *c = layer_cache_free(*c);
}

/* Empties the cache; from now on (layer, side) is encoded and decoded with @table (borrowed). NULL: no layer
 * is. */
void layer_cache_start(struct layer_cache *c, const struct table *table, uint32_t layer, enum side side);

struct kv_cache layer_cache_ops(struct layer_cache *c);

/* The vectors of the compressed side before and after compression: [*ret_n, n_kv_heads, d], without the
 * sinks, of the last append to that layer. Borrowed. */
void layer_cache_vectors(const struct layer_cache *c, const float **ret_x, const float **ret_x_hat,
                         size_t *ret_n);
