/* An exact cache with one compressed layer and side; see cache_layer.h. */
#include "tools/calibrate/cache_layer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/depth.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

struct layer_cache {
    struct exact_cache *exact;
    struct kv_cache ops; /* of the exact cache */
    const struct table *table;
    uint32_t layer;
    enum side side;
    uint32_t n_sink;
    size_t width, n_max; /* n_kv_heads * d; tokens */
    float *in, *out;     /* [n_max, width] the compressed side of one append, before and after */
    size_t n;            /* tokens of that append */
};

int layer_cache_new(const struct geometry *g, size_t n_max, uint32_t n_sink, struct layer_cache **ret_cache,
                    struct errmsg *e)
{
    _cleanup_(layer_cache_freep) struct layer_cache *c = calloc(1, sizeof(*c));
    size_t floats;
    int r;

    if (!c || !checked_mul3(n_max, (size_t) g->n_kv_heads * g->d, sizeof(float), &floats))
        return fail(e, -ENOMEM, "out of memory for a cache of %zu tokens", n_max);

    *c = (struct layer_cache){.n_sink = n_sink, .width = (size_t) g->n_kv_heads * g->d, .n_max = n_max};
    c->in = malloc(floats + 1);
    c->out = malloc(floats + 1);
    if (!c->in || !c->out)
        return fail(e, -ENOMEM, "out of memory for a cache of %zu tokens", n_max);

    r = exact_cache_new(g, n_max, &c->exact, e);
    if (r < 0)
        return r;

    c->ops = exact_cache_ops(c->exact);
    *ret_cache = take_ptr(c);
    return 0;
}

struct layer_cache *layer_cache_free(struct layer_cache *c)
{
    if (!c)
        return NULL;

    (void) exact_cache_free(c->exact);
    free(c->in);
    free(c->out);
    free(c);
    return NULL;
}

void layer_cache_start(struct layer_cache *c, const struct table *table, uint32_t layer, enum side side)
{
    exact_cache_clear(c->exact);
    c->table = table;
    c->layer = layer;
    c->side = side;
    c->n = 0;
}

static int cache_layer_append(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                              struct errmsg *e)
{
    struct layer_cache *c = ctx;
    const float *x = c->side == SIDE_K ? k : v;
    size_t sink = c->n_sink < n ? c->n_sink : n;
    int r;

    if (!c->table || layer != c->layer)
        return c->ops.append(c->ops.ctx, layer, k, v, n, e);
    if (n > c->n_max)
        return fail(e, -ENOSPC, "%zu tokens in a cache of %zu", n, c->n_max);

    memcpy(c->in, x, n * c->width * sizeof(*x));
    memcpy(c->out, x, sink * c->width * sizeof(*x));
    r = depth_round_trip(c->table, layer, c->side, c->in + sink * c->width, c->out + sink * c->width,
                         n - sink, c->width);
    if (r < 0)
        return fail(e, r, "out of memory for decoding layer %u", layer);

    c->n = n;
    return c->ops.append(c->ops.ctx, layer, c->side == SIDE_K ? c->out : k, c->side == SIDE_V ? c->out : v, n,
                         e);
}

static int cache_layer_attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                              struct errmsg *e)
{
    struct layer_cache *c = ctx;

    return c->ops.attend(c->ops.ctx, layer, q, n_q, out, e);
}

static void cache_layer_use_threads(void *ctx, struct threads *t)
{
    struct layer_cache *c = ctx;

    if (c->ops.use_threads)
        c->ops.use_threads(c->ops.ctx, t);
}

struct kv_cache layer_cache_ops(struct layer_cache *c)
{
    return (struct kv_cache){.ctx = c,
                             .append = cache_layer_append,
                             .attend = cache_layer_attend,
                             .use_threads = cache_layer_use_threads};
}

void layer_cache_vectors(const struct layer_cache *c, const float **ret_x, const float **ret_x_hat,
                         size_t *ret_n)
{
    size_t sink = c->n_sink < c->n ? c->n_sink : c->n;

    *ret_x = c->in + sink * c->width;
    *ret_x_hat = c->out + sink * c->width;
    *ret_n = c->n - sink;
}
