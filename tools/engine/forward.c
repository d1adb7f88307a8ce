/*
 * The forward pass of the Llama family; see engine.h. For hidden states h of n tokens, in every layer
 *
 *     x = norm(h);  q, k, v = W x + b;  q, k = norm per head (Qwen3);  h += W_O attention(q, k, v)
 *     x = norm(h);  h += W_down (silu(W_gate x) * W_up x)
 *
 * with norm(x) = w x / sqrt(mean(x^2) + eps). Keys and queries are passed on before RoPE, in half-split
 * order; the cache rotates them, since it has the positions of the tokens.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine_internal.h"
#include "tools/engine/gguf.h"
#include "base/threads.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS_PER_ITEM = 16, /* of work per token */
    TOKENS_MAX = 1 << 24, /* of one pass */
};

static int forward_resize(float **p, size_t n, size_t per_token)
{
    size_t bytes;
    float *grown;

    if (!checked_mul3(n, per_token, sizeof(float), &bytes))
        return -ENOMEM;

    grown = realloc(*p, bytes);
    if (!grown)
        return -ENOMEM;

    *p = grown;
    return 0;
}

int forward_reserve(struct engine *en, size_t n, struct errmsg *e)
{
    const struct network *net = &en->net;
    struct activations *a = &en->act;
    size_t n_q = (size_t) net->geometry.n_heads * net->geometry.d,
           n_kv = (size_t) net->geometry.n_kv_heads * net->geometry.d;
    size_t n_ff = n < FF_TOKENS ? n : FF_TOKENS;

    if (n > TOKENS_MAX)
        return fail(e, -E2BIG, "a pass of %zu tokens; the maximum is %d", n, TOKENS_MAX);
    if (n <= a->n)
        return 0;

    a->n = 0; /* until all buffers have grown */
    if (forward_resize(&a->normed, n, net->n_embd) < 0 || forward_resize(&a->projected, n, net->n_embd) < 0 ||
        forward_resize(&a->q, n, n_q) < 0 || forward_resize(&a->mixed, n, n_q) < 0 ||
        forward_resize(&a->k, n, n_kv) < 0 || forward_resize(&a->v, n, n_kv) < 0 ||
        forward_resize(&a->gate, n_ff, net->n_ff) < 0 || forward_resize(&a->up, n_ff, net->n_ff) < 0)
        return fail(e, -ENOMEM, "no memory for the activations of %zu tokens", n);

    a->n = n;
    return 0;
}

void forward_norm(const float *x, const float *weight, size_t n, double epsilon, float *y)
{
    double sum = 0.0;
    float scale;

    for (size_t i = 0; i < n; i++)
        sum += (double) x[i] * (double) x[i];
    scale = (float) (1.0 / sqrt(sum / (double) n + epsilon));
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

/* ---- work per token, on the workers ---- */

struct tokens {
    struct engine *en;
    const struct network_layer *layer;
    size_t n;
    const float *x;
    const float *weight;
    float *y;
    bool norm_heads;
    void (*one)(const struct tokens *t, size_t i);
};

static void forward_run_tokens(void *ctx, size_t item, unsigned worker)
{
    const struct tokens *t = ctx;
    size_t end = (item + 1) * TOKENS_PER_ITEM < t->n ? (item + 1) * TOKENS_PER_ITEM : t->n;

    (void) worker;
    for (size_t i = item * TOKENS_PER_ITEM; i < end; i++)
        t->one(t, i);
}

static void forward_each_token(struct tokens *t)
{
    threads_run(t->en->threads, forward_run_tokens, t, (t->n + TOKENS_PER_ITEM - 1) / TOKENS_PER_ITEM);
}

static void forward_normalise_token(const struct tokens *t, size_t i)
{
    size_t n = t->en->net.n_embd;

    forward_norm(t->x + i * n, t->weight, n, t->en->net.norm_epsilon, t->y + i * n);
}

void forward_normalise(struct engine *en, const float *x, const float *weight, size_t n, float *y)
{
    struct tokens t = {.en = en, .n = n, .x = x, .weight = weight, .y = y, .one = forward_normalise_token};

    forward_each_token(&t);
}

static void forward_gate_token(const struct tokens *t, size_t i)
{
    size_t n = t->en->net.n_ff;
    float *gate = t->en->act.gate + i * n;
    const float *up = t->en->act.up + i * n;

    for (size_t k = 0; k < n; k++)
        gate[k] = gate[k] / (1.0f + expf(-gate[k])) * up[k]; /* silu(x) = x / (1 + e^-x) */
}

static void forward_add_token(const struct tokens *t, size_t i)
{
    size_t n = t->en->net.n_embd;

    for (size_t k = 0; k < n; k++)
        t->y[i * n + k] += t->x[i * n + k] + (t->weight ? t->weight[k] : 0.0f);
}

/* y += x + bias */
static void forward_add_all(struct engine *en, const float *x, const float *bias, size_t n, float *y)
{
    struct tokens t = {.en = en, .n = n, .x = x, .weight = bias, .y = y, .one = forward_add_token};

    forward_each_token(&t);
}

static void forward_add_bias(float *x, const float *bias, size_t n)
{
    if (bias)
        for (size_t i = 0; i < n; i++)
            x[i] += bias[i];
}

/*
 * The heads of one token: pairs (2i, 2i + 1) of the rotary dimensions, the order of Llama files, become (i, i
 * + n/2); then the norm per head.
 */
static void forward_arrange_heads(const struct network *net, float *x, size_t n_heads, const float *weight)
{
    size_t d = net->geometry.d, half = net->geometry.n_rot / 2;

    for (size_t h = 0; h < n_heads; h++, x += d) {
        if (net->family == NETWORK_LLAMA) {
            float pairs[GEOMETRY_DIM_MAX];

            memcpy(pairs, x, 2 * half * sizeof(*x));
            for (size_t i = 0; i < half; i++) {
                x[i] = pairs[2 * i];
                x[i + half] = pairs[2 * i + 1];
            }
        }

        if (weight)
            forward_norm(x, weight, d, net->norm_epsilon, x);
    }
}

static void forward_arrange_token(const struct tokens *t, size_t i)
{
    const struct network *net = &t->en->net;
    const struct geometry *g = &net->geometry;
    size_t n_q = (size_t) g->n_heads * g->d, n_kv = (size_t) g->n_kv_heads * g->d;
    float *q = t->en->act.q + i * n_q, *k = t->en->act.k + i * n_kv;

    forward_add_bias(q, t->layer->q_bias, n_q);
    forward_add_bias(k, t->layer->k_bias, n_kv);
    forward_add_bias(t->en->act.v + i * n_kv, t->layer->v_bias, n_kv);
    forward_arrange_heads(net, q, g->n_heads, t->norm_heads ? t->layer->q_norm : NULL);
    forward_arrange_heads(net, k, g->n_kv_heads, t->norm_heads ? t->layer->k_norm : NULL);
    if (t->norm_heads && net->q_unrotated_scale != 1.0f)
        for (size_t h = 0; h < g->n_heads; h++)
            for (size_t c = g->n_rot; c < g->d; c++)
                q[h * g->d + c] *= net->q_unrotated_scale;
}

/* ---- layers ---- */

void forward_project(struct engine *en, uint32_t layer, size_t n, const float *hidden, bool norm_heads)
{
    const struct network_layer *l = &en->net.layers[layer];
    struct activations *a = &en->act;
    const struct linear_job qkv[] = {{&l->q, a->q}, {&l->k, a->k}, {&l->v, a->v}};
    struct tokens t = {.en = en, .layer = l, .n = n, .norm_heads = norm_heads, .one = forward_arrange_token};

    forward_normalise(en, hidden, l->attn_norm, n, a->normed);
    linear_run(&en->linear, qkv, 3, a->normed, n);
    forward_each_token(&t);
}

int forward_attention(struct engine *en, struct kv_cache *cache, uint32_t layer, size_t n, float *hidden,
                      struct errmsg *e)
{
    const struct network_layer *l = &en->net.layers[layer];
    struct activations *a = &en->act;
    const struct linear_job out = {&l->o, a->projected};
    int r;

    forward_project(en, layer, n, hidden, true);
    r = cache->append(cache->ctx, layer, a->k, a->v, n, e);
    if (r == 0)
        r = cache->attend(cache->ctx, layer, a->q, n, a->mixed, e);
    if (r < 0)
        return cache->last_error ? fail(e, r, "%s", cache->last_error(cache->error_ctx)) : r;

    linear_run(&en->linear, &out, 1, a->mixed, n);
    forward_add_all(en, a->projected, l->o_bias, n, hidden);
    return en->tap ? en->tap(en->tap_ctx, layer, n, a->q, a->k, a->v, hidden) : 0;
}

static void forward_feed_some(struct engine *en, uint32_t layer, size_t n, float *hidden)
{
    const struct network_layer *l = &en->net.layers[layer];
    struct activations *a = &en->act;
    const struct linear_job wide[] = {{&l->gate, a->gate}, {&l->up, a->up}};
    const struct linear_job down = {&l->down, a->projected};
    struct tokens t = {.en = en, .layer = l, .n = n, .one = forward_gate_token};

    forward_normalise(en, hidden, l->ffn_norm, n, a->normed);
    linear_run(&en->linear, wide, 2, a->normed, n);
    forward_each_token(&t);
    linear_run(&en->linear, &down, 1, a->gate, n);
    forward_add_all(en, a->projected, NULL, n, hidden);
}

void forward_feed(struct engine *en, uint32_t layer, size_t n, float *hidden)
{
    for (size_t at = 0; at < n; at += FF_TOKENS)
        forward_feed_some(en, layer, n - at < FF_TOKENS ? n - at : FF_TOKENS, hidden + at * en->net.n_embd);
}

static int forward_check_window(const struct engine *en, const struct kv_cache *cache, size_t n,
                                struct errmsg *e)
{
    size_t window = en->net.window_tokens, past = cache->length ? cache->length(cache->ctx) : 0;

    if (window == 0 || (past <= window && n <= window - past))
        return 0;

    return fail(e, -EOPNOTSUPP,
                "%s: a sequence of %zu tokens, but its sliding window has %zu, and only full attention is "
                "implemented",
                en->info.name, past + n, window);
}

/* ---- numbers that are not finite ---- */

/* The first of @n rows of @n_cols that has such a number; @n: none. */
static size_t forward_find_unfinite(const float *x, size_t n, size_t n_cols)
{
    for (size_t i = 0; i < n; i++) {
        bool is_finite = true;

        for (size_t k = 0; k < n_cols; k++)
            is_finite &= fabsf(x[i * n_cols + k]) <= FLT_MAX;
        if (!is_finite)
            return i;
    }
    return n;
}

/*
 * Each comparison with NaN is false, so that a choice of the next token, a perplexity or a distance would be
 * a number without a meaning.
 */
static int forward_unfinite(const struct engine *en, const char *where, struct errmsg *e)
{
    return fail(
        e, -EBADMSG,
        "%s: a number that is not finite in %s: the file is damaged, or the model needs a wider type than "
        "binary32; get the file again and compare its checksum",
        gguf_label(en->gguf), where);
}

/* Keys, values and the residual stream after a layer. */
static int forward_check_layer(const struct engine *en, uint32_t layer, size_t past, size_t n,
                               const float *hidden, struct errmsg *e)
{
    size_t n_kv = (size_t) en->net.geometry.n_kv_heads * en->net.geometry.d;
    const struct {
        const char *name;
        const float *x;
        size_t n_cols;
    } parts[] = {
        {"a key", en->act.k, n_kv}, {"a value", en->act.v, n_kv}, {"the output", hidden, en->net.n_embd}};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t row = forward_find_unfinite(parts[i].x, n, parts[i].n_cols);
        char where[96];

        if (row == n)
            continue;
        (void) snprintf(where, sizeof(where), "%s of layer %u for token %zu of the text", parts[i].name,
                        layer, past + row + 1);
        return forward_unfinite(en, where, e);
    }
    return 0;
}

int engine_layers(struct engine *en, struct kv_cache *cache, uint32_t first_layer, uint32_t end_layer,
                  size_t n, float *hidden, struct errmsg *e)
{
    size_t past = cache->length ? cache->length(cache->ctx) : 0;
    int r;

    if (first_layer > end_layer || end_layer > en->net.geometry.n_layers)
        return fail(e, -EINVAL, "layers %u to %u of a model with %u layers", first_layer, end_layer,
                    en->net.geometry.n_layers);

    r = forward_check_window(en, cache, n, e);
    if (r < 0)
        return r;

    r = forward_reserve(en, n, e);
    if (r < 0)
        return r;
    if (cache->use_threads)
        cache->use_threads(cache->ctx, en->threads);
    for (uint32_t layer = first_layer; r == 0 && layer < end_layer; layer++) {
        r = forward_attention(en, cache, layer, n, hidden, e);
        if (r == 0)
            forward_feed(en, layer, n, hidden);
        if (r == 0)
            r = forward_check_layer(en, layer, past, n, hidden, e);
    }

    if (cache->use_threads)
        cache->use_threads(cache->ctx, NULL);
    return r;
}

int engine_embed(struct engine *en, const uint32_t *tokens, size_t n, float *hidden, struct errmsg *e)
{
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] >= en->net.n_vocab)
            return fail(e, -EINVAL, "token %u is outside the vocabulary of %u", tokens[i], en->net.n_vocab);

        linear_rows(&en->net.embedding, tokens[i], 1, hidden + i * en->net.n_embd);
    }

    return 0;
}

int engine_logits(struct engine *en, size_t n, const float *hidden, float *logits, struct errmsg *e)
{
    const struct linear_job head = {&en->net.output, logits};
    int r;

    r = forward_reserve(en, n, e);
    if (r < 0)
        return r;

    forward_normalise(en, hidden, en->net.output_norm, n, en->act.normed);
    linear_run(&en->linear, &head, 1, en->act.normed, n);
    if (forward_find_unfinite(logits, n, en->net.n_vocab) < n)
        return forward_unfinite(en, "the logits of the next token", e);
    return 0;
}

int engine_forward(struct engine *en, struct kv_cache *cache, const uint32_t *tokens, size_t n, float *logits,
                   struct errmsg *e)
{
    _cleanup_(freep) float *hidden = NULL;
    int r;

    errmsg_clear(e);
    if (n == 0)
        return fail(e, -EINVAL, "a forward pass needs at least one token");

    r = forward_resize(&hidden, n, en->net.n_embd);
    if (r < 0)
        return fail(e, r, "no memory for the activations of %zu tokens", n);

    r = engine_embed(en, tokens, n, hidden, e);
    if (r != 0)
        return r;

    r = engine_layers(en, cache, 0, en->net.geometry.n_layers, n, hidden, e);
    if (r != 0)
        return r;

    return logits ? engine_logits(en, 1, hidden + (n - 1) * en->net.n_embd, logits, e) : 0;
}
