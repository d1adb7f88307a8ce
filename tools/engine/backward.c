/*
 * The reverse pass through the whole network; see backward.h.
 *
 * Forward: the engine's layers over a cache of one layer, which store the hidden states twice per layer.
 * Head: logits, labels and d_logits for a few tokens at a time, since vocabularies are long. Backward:
 * backward_layer.c.
 */
#include "tools/engine/backward_internal.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/sampler.h"
#include "tools/engine/softmax.h"
#include "base/threads.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_TOKENS = 128 };

/* ---- memory ---- */

/* Assigns parts of the arena in order. The first call counts without an arena, the second has one. */
struct carver {
    float *arena;
    size_t n_floats;
    bool too_large;
};

static void backward_carve(struct carver *c, size_t count, size_t n, size_t width, float **ret)
{
    size_t floats, end;

    if (!checked_mul3(count, n, width, &floats) || !checked_add(c->n_floats, floats, &end))
        c->too_large = true;
    if (c->too_large)
        return;
    if (c->arena)
        *ret = c->arena + c->n_floats;
    c->n_floats = end;
}

static void backward_carve_all(struct backward *b, struct carver *c)
{
    const struct network *net = &b->en->net;
    const struct geometry *g = &net->geometry;
    size_t n = b->n_max, n_q = (size_t) g->n_heads * g->d, n_kv = (size_t) g->n_kv_heads * g->d;

    backward_carve(c, 1, n, g->n_rot / 2, &b->cosine);
    backward_carve(c, 1, n, g->n_rot / 2, &b->sine);
    backward_carve(c, g->n_layers, n, net->n_embd, &b->before);
    backward_carve(c, g->n_layers, n, net->n_embd, &b->between);
    backward_carve(c, 1, n, net->n_embd, &b->d_hidden);
    backward_carve(c, 1, n, net->n_embd, &b->d_normed);
    backward_carve(c, 1, n, n_q, &b->q);
    backward_carve(c, 1, n, n_q, &b->d_q);
    backward_carve(c, 1, n, n_q, &b->d_mixed);
    backward_carve(c, 1, n, n_kv, &b->k);
    backward_carve(c, b->n_parts, n, n_kv, &b->d_k);
    backward_carve(c, b->n_parts, n, n_kv, &b->d_v);
    backward_carve(c, 1, n < FF_TOKENS ? n : FF_TOKENS, net->n_ff, &b->d_wide);
    backward_carve(c, 1, n < HEAD_TOKENS ? n : HEAD_TOKENS, net->n_vocab, &b->logits);
    backward_carve(c, 1, threads_count(b->en->threads), backward_attention_floats(g, n), &b->scratch);
}

uint64_t backward_bytes(const struct engine *en, size_t n_max)
{
    const struct geometry *g = &en->net.geometry;
    struct backward b = {.en = (struct engine *) en, .n_max = n_max, .n_parts = backward_attention_parts(g)};
    struct carver c = {0};
    float *cache;

    backward_carve_all(&b, &c);
    backward_carve(&c, 2, n_max, (size_t) g->n_kv_heads * g->d, &cache);
    return c.too_large ? UINT64_MAX : (uint64_t) c.n_floats * sizeof(float);
}

static void backward_fill_angles(struct backward *b)
{
    const struct geometry *g = &b->en->net.geometry;
    size_t half = g->n_rot / 2;

    for (size_t position = 0; position < b->n_max; position++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double) position * g->freq[i];

            b->cosine[position * half + i] = (float) cos(angle);
            b->sine[position * half + i] = (float) sin(angle);
        }
    }
}

int backward_new(struct engine *en, size_t n_max, struct backward **ret_backward, struct errmsg *e)
{
    _cleanup_(backward_freep) struct backward *b = calloc(1, sizeof(*b));
    struct geometry one_layer = en->net.geometry;
    struct carver count = {0}, fill = {0};
    size_t bytes;
    int r;

    errmsg_clear(e);
    if (!b)
        return fail(e, -ENOMEM, "no memory for gradients");
    if (n_max == 0)
        return fail(e, -EINVAL, "gradients need at least one token");
    if (en->net.window_tokens > 0 && n_max > en->net.window_tokens)
        return fail(e, -EOPNOTSUPP,
                    "%s: a window of %zu tokens, but its sliding window has %u, and only full attention is "
                    "implemented",
                    en->info.name, n_max, en->net.window_tokens);

    b->en = en;
    b->n_max = n_max;
    b->n_parts = backward_attention_parts(&en->net.geometry);
    r = forward_reserve(en, n_max, e);
    if (r < 0)
        return r;

    backward_carve_all(b, &count);
    if (!count.too_large && checked_mul(count.n_floats, sizeof(float), &bytes))
        b->arena = fill.arena = malloc(bytes);
    if (!b->arena)
        return fail(e, -ENOMEM, "no memory for the gradients of %zu tokens", n_max);

    backward_carve_all(b, &fill);
    backward_fill_angles(b);
    one_layer.n_layers = 1;
    r = exact_cache_new(&one_layer, n_max, &b->exact, e);
    if (r < 0)
        return r;

    *ret_backward = take_ptr(b);
    return 0;
}

struct backward *backward_free(struct backward *b)
{
    if (!b)
        return NULL;

    (void) exact_cache_free(b->exact);
    free(b->arena);
    free(b);
    return NULL;
}

/* ---- forward ---- */

/* A cache of the current layer: the keys of each layer replace those of the previous one. */
static int backward_append_layer(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                                 struct errmsg *e)
{
    struct kv_cache exact = exact_cache_ops(ctx);

    (void) layer;
    exact_cache_clear(ctx);
    return exact.append(exact.ctx, 0, k, v, n, e);
}

static int backward_attend_layer(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                                 struct errmsg *e)
{
    struct kv_cache exact = exact_cache_ops(ctx);

    (void) layer;
    return exact.attend(exact.ctx, 0, q, n_q, out, e);
}

/* Here d_hidden holds hidden states; the gradients replace them later. */
static int backward_run_forward(struct backward *b, const uint32_t *tokens, size_t n, struct errmsg *e)
{
    struct kv_cache exact = exact_cache_ops(b->exact);
    struct kv_cache cache = {
        .ctx = b->exact, .append = backward_append_layer, .attend = backward_attend_layer};
    size_t stride = b->n_max * b->en->net.n_embd, bytes = n * b->en->net.n_embd * sizeof(float);
    float *hidden = b->d_hidden;
    int r = engine_embed(b->en, tokens, n, hidden, e);

    exact.use_threads(exact.ctx, b->en->threads);
    for (uint32_t layer = 0; r == 0 && layer < b->en->net.geometry.n_layers; layer++) {
        memcpy(b->before + layer * stride, hidden, bytes);
        r = forward_attention(b->en, &cache, layer, n, hidden, e);
        if (r != 0)
            break;

        memcpy(b->between + layer * stride, hidden, bytes);
        forward_feed(b->en, layer, n, hidden);
    }

    exact.use_threads(exact.ctx, NULL);
    return r;
}

/* ---- head ---- */

struct backward_head_run {
    struct backward *b;
    const uint32_t *labels;
};

/* log p(y) = z_y - log sum exp z, so its gradient by the logits z is (i = y) - p_i. */
static void backward_head_token(void *ctx, size_t t)
{
    const struct backward_head_run *r = ctx;
    size_t n = r->b->en->net.n_vocab;
    float *z = r->b->logits + t * n;

    softmax_masked(z, n, n);
    for (size_t i = 0; i < n; i++)
        z[i] = -z[i];
    z[r->labels[t]] += 1.0f;
}

/* Replaces the hidden states after the last layer in d_hidden by the gradient by them. */
static int backward_run_head(struct backward *b, size_t n, struct sampler_state *sampler, uint32_t *labels,
                             struct errmsg *e)
{
    struct engine *en = b->en;
    size_t n_embd = en->net.n_embd, n_vocab = en->net.n_vocab;

    for (size_t at = 0; at < n; at += HEAD_TOKENS) {
        size_t some = n - at < HEAD_TOKENS ? n - at : HEAD_TOKENS;
        struct backward_head_run run = {.b = b, .labels = labels + at};
        int r = engine_logits(en, some, b->d_hidden + at * n_embd, b->logits, e);

        if (r < 0)
            return r;

        for (size_t t = 0; sampler && t < some; t++)
            labels[at + t] = sampler_softmax(b->logits + t * n_vocab, n_vocab, 1.0f, sampler);
        backward_each_token(b, some, backward_head_token, &run);
        linear_run_transposed(&en->linear, &en->net.output, b->logits, some, false,
                              b->d_normed + at * n_embd);
    }

    return 0;
}

static void backward_head_norm_token(void *ctx, size_t t)
{
    struct backward *b = ctx;
    size_t n = b->en->net.n_embd;
    float *at = b->d_hidden + t * n;

    /* element by element: each element of @x is read before it is overwritten */
    backward_norm(at, b->en->net.output_norm, n, b->en->net.norm_epsilon, b->d_normed + t * n, false, at);
}

int backward_run(struct backward *b, const uint32_t *tokens, size_t n, struct sampler_state *sampler,
                 uint32_t *labels, backward_tap tap, void *ctx, struct errmsg *e)
{
    int r;

    errmsg_clear(e);
    if (n == 0 || n > b->n_max)
        return fail(e, -EINVAL, "gradients of %zu tokens; the window has 1 to %zu", n, b->n_max);

    for (size_t i = 0; !sampler && i < n; i++)
        if (labels[i] >= b->en->net.n_vocab)
            return fail(e, -EINVAL, "label %u of a vocabulary of %u", labels[i], b->en->net.n_vocab);
    r = backward_run_forward(b, tokens, n, e);
    if (r == 0)
        r = backward_run_head(b, n, sampler, labels, e);
    if (r != 0)
        return r;

    backward_each_token(b, n, backward_head_norm_token, b);
    for (uint32_t layer = b->en->net.geometry.n_layers; r == 0 && layer-- > 0;)
        r = backward_layer(b, layer, n, tap, ctx);
    return r;
}
