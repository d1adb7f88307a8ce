/*
 * The exact cache: binary32 keys and values of every token, with which compressed caches are compared.
 *
 * Keys are rotated when they are appended: a token keeps its position. Attention works on one KV head and a
 * block of queries at a time, so that scores need [rows, length], not [length, length]; blocks are the items
 * of worker threads. Prefill multiplies with sgemm; the few rows of a decode step with sgemv, which reads
 * keys and values in place.
 */
#include "alloc/math/blas_threads.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"
#include "tools/engine/rotary.h"
#include "tools/engine/softmax.h"
#include "base/threads.h"

#include <assert.h>
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_MAX = 128,           /* (query, head) pairs of an item … */
    SCORES_MAX = 1024 * 1024, /* … and their scores: 4 MiB per worker */
    GEMV_ROWS_MAX = 8,        /* up to this many rows sgemv is faster: sgemm first packs the keys */
};

struct exact_cache {
    struct geometry g;
    size_t n_max;
    size_t *n;      /* [n_layers] tokens */
    float **k, **v; /* [n_layers] of [n_kv_heads, n_max, d]; keys rotated */
    struct rotary rotary;
    float *scratch;
    size_t scratch_floats;   /* of all workers */
    struct threads *threads; /* the engine's, during a pass */
};

int exact_cache_new(const struct geometry *g, size_t n_max, struct exact_cache **ret_cache, struct errmsg *e)
{
    _cleanup_(exact_cache_freep) struct exact_cache *c = calloc(1, sizeof(*c));
    size_t bytes;

    errmsg_clear(e);
    if (!c)
        return fail(e, -ENOMEM, "no memory for an exact cache");

    c->g = *g;
    c->n_max = n_max;
    if (!checked_mul3(n_max, (size_t) g->n_kv_heads * g->d, sizeof(float), &bytes))
        return fail(e, -EOVERFLOW, "the size of an exact cache of %zu tokens overflows", n_max);

    c->n = calloc(g->n_layers, sizeof(*c->n));
    c->k = calloc(g->n_layers, sizeof(*c->k));
    c->v = calloc(g->n_layers, sizeof(*c->v));
    if (!c->n || !c->k || !c->v)
        return fail(e, -ENOMEM, "no memory for an exact cache");

    for (uint32_t i = 0; i < g->n_layers; i++) { /* untouched pages use no memory */
        c->k[i] = malloc(bytes + 1);
        c->v[i] = malloc(bytes + 1);
        if (!c->k[i] || !c->v[i])
            return fail(e, -ENOMEM, "no memory for an exact cache of %zu tokens (%zu bytes per layer)", n_max,
                        2 * bytes);
    }

    *ret_cache = take_ptr(c);
    return 0;
}

struct exact_cache *exact_cache_free(struct exact_cache *c)
{
    if (!c)
        return NULL;

    for (uint32_t i = 0; i < c->g.n_layers; i++) {
        if (c->k)
            free(c->k[i]);
        if (c->v)
            free(c->v[i]);
    }

    free(c->k);
    free(c->v);
    free(c->n);
    rotary_deinit(&c->rotary);
    free(c->scratch);
    free(c);
    return NULL;
}

void exact_cache_clear(struct exact_cache *c)
{
    memset(c->n, 0, c->g.n_layers * sizeof(*c->n));
}

static int cache_exact_append(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                              struct errmsg *e)
{
    struct exact_cache *c = ctx;
    size_t d = c->g.d, heads = c->g.n_kv_heads, past;
    int r;

    if (layer >= c->g.n_layers)
        return fail(e, -EINVAL, "layer %u of a cache with %u layers", layer, c->g.n_layers);

    past = c->n[layer];
    if (n > c->n_max - past)
        return fail(e, -ENOSPC, "the exact cache is full: it has %zu tokens and cannot take %zu more", past,
                    n);

    r = rotary_reserve(&c->rotary, &c->g, past + n, c->n_max, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++) {
        for (size_t h = 0; h < heads; h++) {
            size_t to = (h * c->n_max + past + i) * d, from = (i * heads + h) * d;

            rotary_rotate(&c->rotary, past + i, k + from, 1.0f, c->k[layer] + to);
            memcpy(c->v[layer] + to, v + from, d * sizeof(*v));
        }
    }

    c->n[layer] = past + n;
    return 0;
}

/* ---- attention ---- */

struct cache_exact_attend_run {
    const struct exact_cache *c;
    uint32_t layer;
    const float *q;
    float *out;
    size_t n_q, first;      /* position of the first query */
    size_t block, n_blocks; /* queries of an item; items per KV head */
    size_t worker_floats;
};

static void cache_exact_multiply_few(const float *q, const float *k, const float *v, size_t n_rows, size_t d,
                                     size_t n_first, size_t group, size_t n_keys, float *scores, float *mixed)
{
    for (size_t i = 0; i < n_rows; i++) {
        size_t n = n_first + i / group;
        float *s = scores + i * n_keys;

        cblas_sgemv(CblasRowMajor, CblasNoTrans, (int) n, (int) d, 1.0f, k, (int) d, q + i * d, 1, 0.0f, s,
                    1);
        softmax_masked(s, n, n);
        cblas_sgemv(CblasRowMajor, CblasTrans, (int) n, (int) d, 1.0f, v, (int) d, s, 1, 0.0f, mixed + i * d,
                    1);
    }
}

static void cache_exact_multiply_many(const float *q, const float *k, const float *v, size_t n_rows, size_t d,
                                      size_t n_first, size_t group, size_t n_keys, float *scores,
                                      float *mixed)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n_rows, (int) n_keys, (int) d, 1.0f, q,
                (int) d, k, (int) d, 0.0f, scores, (int) n_keys);
    for (size_t i = 0; i < n_rows; i++)
        softmax_masked(scores + i * n_keys, n_first + i / group, n_keys);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n_rows, (int) d, (int) n_keys, 1.0f, scores,
                (int) n_keys, v, (int) d, 0.0f, mixed, (int) d);
}

/* One KV head, one block of queries: rows are (query, head of the group). */
static void cache_exact_attend_item(void *ctx, size_t item, unsigned worker)
{
    const struct cache_exact_attend_run *r = ctx;
    const struct exact_cache *c = r->c;
    size_t d = c->g.d, group = geometry_group(&c->g), n_heads = c->g.n_heads;
    size_t kv_head = item / r->n_blocks, from = item % r->n_blocks * r->block;
    size_t n = r->n_q - from < r->block ? r->n_q - from : r->block, n_rows = n * group;
    size_t n_keys = r->first + from + n;
    const float *k = c->k[r->layer] + kv_head * c->n_max * d, *v = c->v[r->layer] + kv_head * c->n_max * d;
    float *q = c->scratch + worker * r->worker_floats, *mixed = q + n_rows * d, *scores = mixed + n_rows * d;

    for (size_t i = 0; i < n_rows; i++)
        rotary_rotate(&c->rotary, r->first + from + i / group,
                      r->q + ((from + i / group) * n_heads + kv_head * group + i % group) * d,
                      (float) c->g.attn_scale, q + i * d);
    if (n_rows <= GEMV_ROWS_MAX)
        cache_exact_multiply_few(q, k, v, n_rows, d, r->first + from + 1, group, n_keys, scores, mixed);
    else
        cache_exact_multiply_many(q, k, v, n_rows, d, r->first + from + 1, group, n_keys, scores, mixed);
    for (size_t i = 0; i < n_rows; i++)
        memcpy(r->out + ((from + i / group) * n_heads + kv_head * group + i % group) * d, mixed + i * d,
               d * sizeof(float));
}

static int cache_exact_reserve_scratch(struct exact_cache *c, const struct cache_exact_attend_run *r,
                                       struct errmsg *e)
{
    size_t floats = r->worker_floats * threads_count(c->threads);
    float *p;

    if (floats <= c->scratch_floats)
        return 0;

    p = realloc(c->scratch, floats * sizeof(*p));
    if (!p)
        return fail(e, -ENOMEM, "no memory for %zu attention scores", floats);

    c->scratch = p;
    c->scratch_floats = floats;
    return 0;
}

int exact_cache_attend(struct exact_cache *c, uint32_t layer, const float *q, size_t first, size_t n_q,
                       float *out, struct errmsg *e)
{
    _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
    size_t group = geometry_group(&c->g), n_keys, rows;
    struct cache_exact_attend_run r = {
        .c = c, .layer = layer, .q = q, .out = out, .n_q = n_q, .first = first};
    int err;

    if (layer >= c->g.n_layers || first > c->n[layer] || n_q > c->n[layer] - first)
        return fail(e, -EINVAL, "%zu queries of layer %u, which holds fewer tokens", n_q, layer);
    if (n_q == 0)
        return 0;

    n_keys = first + n_q;
    rows = SCORES_MAX / n_keys;
    rows = rows > ROWS_MAX ? ROWS_MAX : rows;
    r.block = rows < group ? 1 : rows / group;
    r.block = r.block > n_q ? n_q : r.block;
    r.n_blocks = (n_q + r.block - 1) / r.block;
    r.worker_floats = r.block * group * (2 * c->g.d + n_keys);
    err = cache_exact_reserve_scratch(c, &r, e);
    if (err < 0)
        return err;

    threads_run(c->threads, cache_exact_attend_item, &r, r.n_blocks * c->g.n_kv_heads);
    return 0;
}

static int cache_exact_attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                              struct errmsg *e)
{
    struct exact_cache *c = ctx;

    if (layer >= c->g.n_layers || n_q > c->n[layer])
        return fail(e, -EINVAL, "%zu queries of layer %u, which holds fewer tokens", n_q, layer);

    return exact_cache_attend(c, layer, q, c->n[layer] - n_q, n_q, out, e);
}

void exact_cache_replace(struct exact_cache *c, uint32_t layer, enum side side, size_t first, size_t n,
                         bool rotated, const float *x)
{
    size_t d = c->g.d, heads = c->g.n_kv_heads;
    float *rows = side == SIDE_K ? c->k[layer] : c->v[layer];

    assert(layer < c->g.n_layers && first <= c->n[layer] && n <= c->n[layer] - first);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++) {
            float *to = rows + (h * c->n_max + first + i) * d;
            const float *from = x + (i * heads + h) * d;

            if (side == SIDE_K && !rotated)
                rotary_rotate(&c->rotary, first + i, from, 1.0f, to);
            else
                memcpy(to, from, d * sizeof(*to));
        }
}

static size_t cache_exact_length(void *ctx)
{
    const struct exact_cache *c = ctx;
    size_t n = c->n[0];

    for (uint32_t i = 1; i < c->g.n_layers; i++)
        n = c->n[i] < n ? c->n[i] : n;
    return n;
}

static void cache_exact_use_threads(void *ctx, struct threads *t)
{
    struct exact_cache *c = ctx;

    c->threads = t;
}

struct kv_cache exact_cache_ops(struct exact_cache *c)
{
    return (struct kv_cache){.ctx = c,
                             .append = cache_exact_append,
                             .attend = cache_exact_attend,
                             .length = cache_exact_length,
                             .use_threads = cache_exact_use_threads};
}
