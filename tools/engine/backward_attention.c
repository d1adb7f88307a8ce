/*
 * Backward pass of attention. With rotated q and k, the scale in q, and for one head
 *
 *     s = q k',  p = softmax(s) over the keys up to the query's position,  o = p v
 *
 * it is   d_v = p' d_o,  d_p = d_o v',  d_s = p (d_p - sum_n p d_p),  d_q = d_s k,  d_k = d_s' q,
 *
 * d_k and d_v summed over the heads of a group. Probabilities are recomputed for one KV head and a block of
 * queries at a time: scores need [rows, n], not [n, n].
 *
 * Queries are cut into parts, whose number depends only on the model. A part of one KV head is a work item
 * with its own sums of d_k and d_v. These are added in order, so that the result does not depend on the
 * workers.
 */
#include "tools/engine/backward_internal.h"

#include "alloc/math/blas_threads.h"
#include "base/cleanup.h"
#include "tools/engine/softmax.h"
#include "base/threads.h"

#include <cblas.h>
#include <string.h>

enum {
    ROWS = 128,     /* (query, head) pairs of a block */
    ITEMS_MIN = 16, /* of a layer: more parts if there are few KV heads */
};

struct attention_run {
    struct backward *b;
    const struct network_layer *layer;
    size_t n, part_queries, worker_floats;
};

/* The gathered rows of an item. */
struct backward_attention_block {
    float *q, *d_o, *d_q; /* [rows, d] */
    float *p, *d_p;       /* [rows, n_keys] */
};

size_t backward_attention_parts(const struct geometry *g)
{
    return (ITEMS_MIN + g->n_kv_heads - 1) / g->n_kv_heads;
}

static size_t backward_attention_block_queries(const struct geometry *g)
{
    return ROWS < geometry_group(g) ? 1 : ROWS / geometry_group(g);
}

size_t backward_attention_floats(const struct geometry *g, size_t n)
{
    return backward_attention_block_queries(g) * geometry_group(g) * (3 * (size_t) g->d + 2 * n);
}

/* Rotates x by @direction times the angles of its position, then multiplies it by @scale. */
static void backward_attention_rotate(const struct backward *b, size_t position, float direction, float scale,
                                      float *x)
{
    const struct geometry *g = &b->en->net.geometry;
    size_t half = g->n_rot / 2;
    const float *cosine = b->cosine + position * half, *sine = b->sine + position * half;

    for (size_t i = 0; i < half; i++) {
        float s = direction * sine[i], first = x[i], second = x[i + half];

        x[i] = scale * (first * cosine[i] - second * s);
        x[i + half] = scale * (first * s + second * cosine[i]);
    }

    for (size_t i = 2 * half; i < g->d; i++)
        x[i] *= scale;
}

static void backward_attention_scale_unrotated(const struct backward *b, float *x)
{
    for (size_t i = b->en->net.geometry.n_rot; i < b->en->net.geometry.d; i++)
        x[i] *= b->en->net.q_unrotated_scale;
}

/* The rotated and scaled queries and keys of one token. */
static void backward_attention_prepare_token(void *ctx, size_t t)
{
    const struct attention_run *r = ctx;
    struct backward *b = r->b;
    const struct geometry *g = &b->en->net.geometry;
    size_t d = g->d, n_q = g->n_heads * d, n_kv = g->n_kv_heads * d;
    float *q = b->q + t * n_q, *k = b->k + t * n_kv;

    memcpy(q, b->en->act.q + t * n_q, n_q * sizeof(*q));
    memcpy(k, b->en->act.k + t * n_kv, n_kv * sizeof(*k));
    for (size_t h = 0; h < g->n_heads; h++) {
        if (r->layer->q_norm)
            forward_norm(q + h * d, r->layer->q_norm, d, b->en->net.norm_epsilon, q + h * d);
        backward_attention_scale_unrotated(b, q + h * d);
        backward_attention_rotate(b, t, 1.0f, (float) g->attn_scale, q + h * d);
    }

    for (size_t h = 0; h < g->n_kv_heads; h++) {
        if (r->layer->k_norm)
            forward_norm(k + h * d, r->layer->k_norm, d, b->en->net.norm_epsilon, k + h * d);
        backward_attention_rotate(b, t, 1.0f, 1.0f, k + h * d);
    }
}

/* Rotates gradients back, and adds the sums of all parts into the first. */
static void backward_attention_finish_token(void *ctx, size_t t)
{
    const struct attention_run *r = ctx;
    struct backward *b = r->b;
    const struct geometry *g = &b->en->net.geometry;
    size_t d = g->d, n_kv = g->n_kv_heads * d;
    float *d_q = b->d_q + t * g->n_heads * d, *d_k = b->d_k + t * n_kv, *d_v = b->d_v + t * n_kv;

    for (size_t h = 0; h < g->n_heads; h++) {
        backward_attention_rotate(b, t, -1.0f, (float) g->attn_scale, d_q + h * d);
        backward_attention_scale_unrotated(b, d_q + h * d);
    }

    for (size_t part = 1; part < b->n_parts; part++) {
        for (size_t i = 0; i < n_kv; i++) {
            d_k[i] += d_k[part * r->n * n_kv + i];
            d_v[i] += d_v[part * r->n * n_kv + i];
        }
    }

    for (size_t h = 0; h < g->n_kv_heads; h++)
        backward_attention_rotate(b, t, -1.0f, 1.0f, d_k + h * d);
}

/* d_p becomes d_s. */
static void backward_attention_softmax_back(const float *p, float *d_p, size_t n, size_t width)
{
    double dot = 0.0;

    for (size_t i = 0; i < n; i++)
        dot += (double) p[i] * (double) d_p[i];
    for (size_t i = 0; i < n; i++)
        d_p[i] = p[i] * (d_p[i] - (float) dot);
    memset(d_p + n, 0, (width - n) * sizeof(*d_p));
}

/* Row i of a block: query from + i / group, head i % group of the KV head's. */
static size_t backward_attention_row_at(const struct geometry *g, size_t kv_head, size_t from, size_t i)
{
    size_t group = geometry_group(g);

    return ((from + i / group) * g->n_heads + kv_head * group + i % group) * g->d;
}

/* Queries @from .. @from + @n - 1 of one KV head. */
static void backward_attention_run_block(const struct attention_run *r,
                                         const struct backward_attention_block *x, size_t kv_head,
                                         size_t part, size_t from, size_t n)
{
    struct backward *b = r->b;
    const struct geometry *g = &b->en->net.geometry;
    size_t d = g->d, group = geometry_group(g), n_keys = from + n;
    int rows = (int) (n * group), keys = (int) n_keys, dim = (int) d, stride = (int) (g->n_kv_heads * d);
    const float *k = b->k + kv_head * d, *v = b->en->act.v + kv_head * d;
    float *d_k = b->d_k + part * r->n * g->n_kv_heads * d + kv_head * d;
    float *d_v = b->d_v + part * r->n * g->n_kv_heads * d + kv_head * d;

    for (size_t i = 0; i < n * group; i++) {
        memcpy(x->q + i * d, b->q + backward_attention_row_at(g, kv_head, from, i), d * sizeof(float));
        memcpy(x->d_o + i * d, b->d_mixed + backward_attention_row_at(g, kv_head, from, i),
               d * sizeof(float));
    }

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, dim, 1.0f, x->q, dim, k, stride, 0.0f,
                x->p, keys);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, dim, 1.0f, x->d_o, dim, v, stride, 0.0f,
                x->d_p, keys);
    for (size_t i = 0; i < n * group; i++) {
        size_t seen = from + i / group + 1;

        softmax_masked(x->p + i * n_keys, seen, n_keys);
        backward_attention_softmax_back(x->p + i * n_keys, x->d_p + i * n_keys, seen, n_keys);
    }

    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, dim, rows, 1.0f, x->p, keys, x->d_o, dim, 1.0f,
                d_v, stride);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, dim, rows, 1.0f, x->d_p, keys, x->q, dim, 1.0f,
                d_k, stride);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, keys, 1.0f, x->d_p, keys, k, stride,
                0.0f, x->d_q, dim);
    for (size_t i = 0; i < n * group; i++)
        memcpy(b->d_q + backward_attention_row_at(g, kv_head, from, i), x->d_q + i * d, d * sizeof(float));
}

/* The last parts first: they have the most keys. */
static void backward_attention_run_part(void *ctx, size_t item, unsigned worker)
{
    const struct attention_run *r = ctx;
    const struct geometry *g = &r->b->en->net.geometry;
    size_t kv_head = item % g->n_kv_heads, part = r->b->n_parts - 1 - item / g->n_kv_heads;
    size_t step = backward_attention_block_queries(g), floats = step * geometry_group(g) * g->d;
    size_t end = (part + 1) * r->part_queries < r->n ? (part + 1) * r->part_queries : r->n;
    struct backward_attention_block x = {.q = r->b->scratch + worker * r->worker_floats};

    x.d_o = x.q + floats;
    x.d_q = x.d_o + floats;
    x.p = x.d_q + floats;
    x.d_p = x.p + step * geometry_group(g) * r->n;
    for (size_t from = part * r->part_queries; from < end; from += step)
        backward_attention_run_block(r, &x, kv_head, part, from, end - from < step ? end - from : step);
}

void backward_attention(struct backward *b, uint32_t layer, size_t n)
{
    _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
    const struct geometry *g = &b->en->net.geometry;
    size_t bytes = b->n_parts * n * g->n_kv_heads * g->d * sizeof(float);
    struct attention_run r = {
        .b = b,
        .layer = &b->en->net.layers[layer],
        .n = n,
        .part_queries = (n + b->n_parts - 1) / b->n_parts,
        .worker_floats = backward_attention_floats(g, n),
    };

    backward_each_token(b, n, backward_attention_prepare_token, &r);
    memset(b->d_k, 0, bytes);
    memset(b->d_v, 0, bytes);
    threads_run(b->en->threads, backward_attention_run_part, &r, b->n_parts * g->n_kv_heads);
    backward_each_token(b, n, backward_attention_finish_token, &r);
}
