/* Sequences in lock step; see cache_batch.h. Keys are rotated when they are appended: a token keeps its
 * position. */
#include "tools/calibrate/cache_batch.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/blas_threads.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/threads.h"

struct batch_cache {
    struct geometry g;
    size_t n_sequences, n_max;
    size_t *n;       /* [n_layers] tokens of every sequence */
    float *k, *v;    /* [n_layers, n_sequences, n_kv_heads, n_max, d] */
    float *scores;   /* [n_sequences, n_heads, n_max] */
    size_t position; /* of the angles; all sequences are at one position */
    float cosine[GEOMETRY_PLANES_MAX], sine[GEOMETRY_PLANES_MAX];
    struct threads *threads; /* the engine's, during a pass */
};

uint64_t batch_cache_bytes(const struct geometry *g, size_t n_sequences, size_t n_max)
{
    return (uint64_t) n_sequences * n_max * sizeof(float) *
           (2ull * g->n_layers * g->n_kv_heads * g->d + g->n_heads);
}

int batch_cache_new(const struct geometry *g, size_t n_sequences, size_t n_max,
                    struct batch_cache **ret_cache, struct errmsg *e)
{
    _cleanup_(batch_cache_freep) struct batch_cache *c = calloc(1, sizeof(*c));
    size_t tokens, bytes;

    if (!c)
        return fail(e, -ENOMEM, "out of memory for a cache");

    *c = (struct batch_cache){.g = *g, .n_sequences = n_sequences, .n_max = n_max, .position = SIZE_MAX};
    if (!checked_mul(n_sequences, n_max, &tokens) ||
        !checked_mul3(tokens, (size_t) g->n_layers * g->n_kv_heads * g->d, sizeof(float), &bytes))
        return fail(e, -ENOMEM, "%zu sequences of %zu tokens do not fit into memory", n_sequences, n_max);

    c->n = calloc(g->n_layers, sizeof(*c->n));
    c->k = malloc(bytes);
    c->v = malloc(bytes);
    c->scores = malloc(tokens * g->n_heads * sizeof(float));
    if (!c->n || !c->k || !c->v || !c->scores)
        return fail(e, -ENOMEM, "out of memory: %zu sequences of %zu tokens take %llu MiB", n_sequences,
                    n_max, (unsigned long long) (batch_cache_bytes(g, n_sequences, n_max) >> 20));

    *ret_cache = take_ptr(c);
    return 0;
}

struct batch_cache *batch_cache_free(struct batch_cache *c)
{
    if (!c)
        return NULL;

    free(c->n);
    free(c->k);
    free(c->v);
    free(c->scores);
    free(c);
    return NULL;
}

/* First row of the keys (or values) of one head of a sequence. */
static size_t cache_batch_head_rows(const struct batch_cache *c, uint32_t layer, size_t sequence, size_t head)
{
    return ((layer * c->n_sequences + sequence) * c->g.n_kv_heads + head) * c->n_max * c->g.d;
}

/* The angles of a position: computed for its first layer, used by all of them. */
static void cache_batch_set_position(struct batch_cache *c, size_t position)
{
    if (c->position == position)
        return;

    c->position = position;
    for (size_t i = 0; i < c->g.n_rot / 2; i++) {
        double angle = (double) position * c->g.freq[i];

        c->cosine[i] = (float) cos(angle);
        c->sine[i] = (float) sin(angle);
    }
}

/* y = scale R(c->position) x */
static void cache_batch_rotate(const struct batch_cache *c, const float *x, float scale, float *y)
{
    size_t half = c->g.n_rot / 2;

    for (size_t i = 0; i < half; i++) {
        y[i] = scale * (x[i] * c->cosine[i] - x[i + half] * c->sine[i]);
        y[i + half] = scale * (x[i] * c->sine[i] + x[i + half] * c->cosine[i]);
    }

    for (size_t i = 2 * half; i < c->g.d; i++)
        y[i] = scale * x[i];
}

static int cache_batch_append(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                              struct errmsg *e)
{
    struct batch_cache *c = ctx;
    size_t d = c->g.d, heads = c->g.n_kv_heads, at;

    if (layer >= c->g.n_layers || n != c->n_sequences)
        return fail(e, -EINVAL, "%zu rows of layer %u for %zu sequences", n, layer, c->n_sequences);

    at = c->n[layer];
    if (at == c->n_max)
        return fail(e, -ENOSPC, "the sequences are full at %zu tokens", at);

    cache_batch_set_position(c, at);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++) {
            size_t to = cache_batch_head_rows(c, layer, i, h) + at * d;

            cache_batch_rotate(c, k + (i * heads + h) * d, 1.0f, c->k + to);
            memcpy(c->v + to, v + (i * heads + h) * d, d * sizeof(*v));
        }
    c->n[layer] = at + 1;
    return 0;
}

struct cache_batch_attend_run {
    const struct batch_cache *c;
    uint32_t layer;
    const float *q;
    float *out;
};

/* One query head of one sequence. Its keys and values are contiguous: two products of a matrix and a
 * vector. */
static void cache_batch_attend_item(void *ctx, size_t item, unsigned worker)
{
    const struct cache_batch_attend_run *r = ctx;
    const struct batch_cache *c = r->c;
    size_t d = c->g.d, n = c->n[r->layer], sequence = item / c->g.n_heads, head = item % c->g.n_heads;
    size_t rows = cache_batch_head_rows(c, r->layer, sequence, head / geometry_group(&c->g));
    const float *k = c->k + rows, *v = c->v + rows;
    float *score = c->scores + item * c->n_max, *out = r->out + item * d, q[GEOMETRY_DIM_MAX],
          max = -INFINITY;
    float sum = 0;

    (void) worker;
    cache_batch_rotate(c, r->q + item * d, (float) c->g.attn_scale, q);
    cblas_sgemv(CblasRowMajor, CblasNoTrans, (int) n, (int) d, 1.0f, k, (int) d, q, 1, 0.0f, score, 1);
    for (size_t t = 0; t < n; t++)
        max = score[t] > max ? score[t] : max;
    for (size_t t = 0; t < n; t++) {
        score[t] = expf(score[t] - max);
        sum += score[t];
    }

    cblas_sgemv(CblasRowMajor, CblasTrans, (int) n, (int) d, 1.0f / sum, v, (int) d, score, 1, 0.0f, out, 1);
}

static int cache_batch_attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                              struct errmsg *e)
{
    _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
    struct batch_cache *c = ctx;
    struct cache_batch_attend_run r = {.c = c, .layer = layer, .q = q, .out = out};

    if (layer >= c->g.n_layers || n_q != c->n_sequences || c->n[layer] == 0)
        return fail(e, -EINVAL, "%zu queries of layer %u for %zu sequences", n_q, layer, c->n_sequences);

    cache_batch_set_position(c, c->n[layer] - 1);
    threads_run(c->threads, cache_batch_attend_item, &r, n_q * c->g.n_heads);
    return 0;
}

static void cache_batch_use_threads(void *ctx, struct threads *t)
{
    struct batch_cache *c = ctx;

    c->threads = t;
}

struct kv_cache batch_cache_ops(struct batch_cache *c)
{
    /* no length(): the engine counts rows, which are sequences here, not tokens of one */
    return (struct kv_cache){.ctx = c,
                             .append = cache_batch_append,
                             .attend = cache_batch_attend,
                             .use_threads = cache_batch_use_threads};
}
