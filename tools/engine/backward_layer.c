/*
 * Backward pass of one layer, its second half first; see forward.c for the network. The forward pass stored
 * the hidden states; all other values of the layer are recomputed.
 */
#include "tools/engine/backward_internal.h"

#include "base/cleanup.h"
#include "base/threads.h"

#include <math.h>
#include <string.h>

enum { TOKENS_PER_ITEM = 16 };

struct each_token {
    size_t n;
    void (*one)(void *ctx, size_t token);
    void *ctx;
};

static void backward_layer_run_tokens(void *ctx, size_t item, unsigned worker)
{
    const struct each_token *t = ctx;
    size_t end = (item + 1) * TOKENS_PER_ITEM < t->n ? (item + 1) * TOKENS_PER_ITEM : t->n;

    (void) worker;
    for (size_t i = item * TOKENS_PER_ITEM; i < end; i++)
        t->one(t->ctx, i);
}

void backward_each_token(struct backward *b, size_t n, void (*one)(void *ctx, size_t token), void *ctx)
{
    struct each_token t = {.n = n, .one = one, .ctx = ctx};

    threads_run(b->en->threads, backward_layer_run_tokens, &t, (n + TOKENS_PER_ITEM - 1) / TOKENS_PER_ITEM);
}

/*
 * With s = 1 / sqrt(mean(x^2) + eps), y_i = w_i s x_i and ds/dx_j = -s^3 x_j / n:
 *
 *     d_x_j = s (w_j d_y_j - x_j s^2 / n * sum_i w_i d_y_i x_i)
 */
void backward_norm(const float *x, const float *weight, size_t n, double epsilon, const float *d_y, bool add,
                   float *d_x)
{
    double squares = 0.0, dot = 0.0, s, along;

    for (size_t i = 0; i < n; i++) {
        squares += (double) x[i] * (double) x[i];
        dot += (double) weight[i] * (double) d_y[i] * (double) x[i];
    }

    s = 1.0 / sqrt(squares / (double) n + epsilon);
    along = s * s * dot / (double) n;
    for (size_t i = 0; i < n; i++) {
        double g = s * ((double) weight[i] * (double) d_y[i] - (double) x[i] * along);

        d_x[i] = (float) (add ? (double) d_x[i] + g : g);
    }
}

struct norm_run {
    struct backward *b;
    const float *x, *weight;
};

static void backward_layer_norm_token(void *ctx, size_t t)
{
    const struct norm_run *r = ctx;
    size_t n = r->b->en->net.n_embd;

    backward_norm(r->x + t * n, r->weight, n, r->b->en->net.norm_epsilon, r->b->d_normed + t * n, true,
                  r->b->d_hidden + t * n);
}

void backward_norm_all(struct backward *b, const float *x, const float *weight, size_t n)
{
    struct norm_run r = {.b = b, .x = x, .weight = weight};

    backward_each_token(b, n, backward_layer_norm_token, &r);
}

/* ---- the second half: h += W_down (silu(W_gate x) * W_up x) ---- */

/* silu(g) = g t with t = 1 / (1 + e^-g), silu' = t (1 + g (1 - t)). act.gate and .up become gradients. */
static void backward_layer_gate_token(void *ctx, size_t token)
{
    struct backward *b = ctx;
    size_t n = b->en->net.n_ff;
    float *gate = b->en->act.gate + token * n, *up = b->en->act.up + token * n;
    const float *d_wide = b->d_wide + token * n;

    for (size_t i = 0; i < n; i++) {
        float g = gate[i], t = 1.0f / (1.0f + expf(-g));

        gate[i] = d_wide[i] * up[i] * t * (1.0f + g * (1.0f - t));
        up[i] = d_wide[i] * g * t;
    }
}

/* Tokens @at .. @at + @n - 1, at most FF_TOKENS. */
static void backward_layer_feed_some(struct backward *b, uint32_t layer, size_t at, size_t n)
{
    struct engine *en = b->en;
    const struct network_layer *l = &en->net.layers[layer];
    const struct linear_job wide[] = {{&l->gate, en->act.gate}, {&l->up, en->act.up}};
    size_t n_embd = en->net.n_embd;
    const float *hidden = b->between + (layer * b->n_max + at) * n_embd;

    forward_normalise(en, hidden, l->ffn_norm, n, en->act.normed);
    linear_run(&en->linear, wide, 2, en->act.normed, n);
    linear_run_transposed(&en->linear, &l->down, b->d_hidden + at * n_embd, n, false, b->d_wide);
    backward_each_token(b, n, backward_layer_gate_token, b);
    linear_run_transposed(&en->linear, &l->gate, en->act.gate, n, false, b->d_normed + at * n_embd);
    linear_run_transposed(&en->linear, &l->up, en->act.up, n, true, b->d_normed + at * n_embd);
}

static void backward_layer_feed_back(struct backward *b, uint32_t layer, size_t n)
{
    const struct network *net = &b->en->net;

    for (size_t at = 0; at < n; at += FF_TOKENS)
        backward_layer_feed_some(b, layer, at, n - at < FF_TOKENS ? n - at : FF_TOKENS);
    backward_norm_all(b, b->between + layer * b->n_max * net->n_embd, net->layers[layer].ffn_norm, n);
}

/* ---- the first half: h += W_O attention(q, k, v) ---- */

/* Backward pass of the norm per head and of the order of the file; see forward.c. @x: before the norm. */
static void backward_layer_restore_heads(const struct network *net, const float *x, size_t n_heads,
                                         const float *weight, float *d_x)
{
    size_t d = net->geometry.d, half = net->geometry.n_rot / 2;

    for (size_t h = 0; h < n_heads; h++, x += d, d_x += d) {
        if (weight)
            backward_norm(x, weight, d, net->norm_epsilon, d_x, false, d_x);
        if (net->family == NETWORK_LLAMA) {
            float halves[GEOMETRY_DIM_MAX];

            memcpy(halves, d_x, 2 * half * sizeof(*d_x));
            for (size_t i = 0; i < half; i++) {
                d_x[2 * i] = halves[i];
                d_x[2 * i + 1] = halves[i + half];
            }
        }
    }
}

struct disarrange_run {
    struct backward *b;
    const struct network_layer *layer;
};

static void backward_layer_restore_token(void *ctx, size_t t)
{
    const struct disarrange_run *r = ctx;
    struct backward *b = r->b;
    const struct network *net = &b->en->net;
    const struct geometry *g = &net->geometry;
    size_t n_q = (size_t) g->n_heads * g->d, n_kv = (size_t) g->n_kv_heads * g->d;

    backward_layer_restore_heads(net, b->en->act.q + t * n_q, g->n_heads, r->layer->q_norm, b->d_q + t * n_q);
    backward_layer_restore_heads(net, b->en->act.k + t * n_kv, g->n_kv_heads, r->layer->k_norm,
                                 b->d_k + t * n_kv);
}

int backward_layer(struct backward *b, uint32_t layer, size_t n, backward_tap tap, void *ctx)
{
    struct engine *en = b->en;
    const struct network_layer *l = &en->net.layers[layer];
    const float *hidden = b->before + layer * b->n_max * en->net.n_embd;
    struct disarrange_run run = {.b = b, .layer = l};
    int r;

    backward_layer_feed_back(b, layer, n);
    forward_project(en, layer, n, hidden, false);
    linear_run_transposed(&en->linear, &l->o, b->d_hidden, n, false, b->d_mixed);
    backward_attention(b, layer, n);
    r = tap(ctx, layer, n, b->d_k, b->d_v);
    if (r != 0 || layer == 0)
        return r;

    backward_each_token(b, n, backward_layer_restore_token, &run);
    linear_run_transposed(&en->linear, &l->q, b->d_q, n, false, b->d_normed);
    linear_run_transposed(&en->linear, &l->k, b->d_k, n, true, b->d_normed);
    linear_run_transposed(&en->linear, &l->v, b->d_v, n, true, b->d_normed);
    backward_norm_all(b, hidden, l->attn_norm, n);
    return 0;
}
