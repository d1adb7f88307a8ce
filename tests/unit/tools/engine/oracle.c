/* The network of the Llama family in binary64, from the formulas; see oracle.h. */
#include "tests/unit/tools/engine/oracle.h"

#include "base/cleanup.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PLANES_MAX = 128 };

struct oracle {
    const struct tiny_gguf *t;
    const struct tiny_gguf_options *o;
    double freq[N_PLANES_MAX], magnitude;
    const struct oracle_change *change;
};

static const float *weights(const struct oracle *r, const char *fmt, unsigned layer)
{
    char name[64];
    int n;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = snprintf(name, sizeof(name), fmt, layer);
#pragma GCC diagnostic pop
    assert(n > 0);
    return tiny_gguf_tensor(r->t, name, NULL);
}

/* y = W x + b */
void oracle_product(const float *w, const float *b, size_t rows, size_t cols, const double *x, double *y)
{
    for (size_t i = 0; i < rows; i++) {
        y[i] = b ? (double) b[i] : 0.0;
        for (size_t k = 0; k < cols; k++)
            y[i] += (double) w[i * cols + k] * x[k];
    }
}

void oracle_norm(const float *w, size_t n, const double *x, double *y)
{
    double s = 0.0;

    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = sqrt(s / (double) n + (double) 1e-5f);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / s * (double) w[i];
}

/* YaRN by its paper: a plane with r rotations in 1024 tokens is unchanged for r > 32, divided for r < 1. */
static void oracle_rope(struct oracle *r)
{
    const float *factors = weights(r, "rope_freqs.weight", 0);
    unsigned half = r->o->n_rot / 2;
    bool yarn = r->o->rope_scaling && strcmp(r->o->rope_scaling, "yarn") == 0;
    bool linear = r->o->rope_scaling && strcmp(r->o->rope_scaling, "linear") == 0;
    double low = floor(r->o->n_rot * log(1024 / (32 * 2 * M_PI)) / (2 * log(10000.0)));
    double high = ceil(r->o->n_rot * log(1024 / (1 * 2 * M_PI)) / (2 * log(10000.0)));

    r->magnitude = yarn ? 0.1 * log(4.0) + 1.0 : 1.0;
    for (unsigned i = 0; i < half; i++) {
        double theta = pow(10000.0, -2.0 * i / r->o->n_rot), divide;

        divide = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        r->freq[i] = theta / (factors ? (double) factors[i] : 1.0);
        if (linear)
            r->freq[i] /= 4.0;
        if (yarn)
            r->freq[i] *= (1.0 - divide) + divide / 4.0;
    }
}

/* Llama files rotate neighbouring dimensions, the others the two halves. */
static void turn(const struct oracle *r, double *x, size_t position)
{
    unsigned half = r->o->n_rot / 2;
    bool pairs = strcmp(r->o->architecture, "llama") == 0;

    for (unsigned i = 0; i < half; i++) {
        double *a = pairs ? &x[2 * i] : &x[i], *b = pairs ? &x[2 * i + 1] : &x[i + half];
        double c = cos((double) position * r->freq[i]) * r->magnitude,
               s = sin((double) position * r->freq[i]) * r->magnitude;
        double rotated = *a * c - *b * s;

        *b = *a * s + *b * c;
        *a = rotated;
    }
}

/* Place of coordinate @i in the order of the file, which may interleave the two halves of the rotary
 * dimensions. */
static size_t position(size_t i, size_t half, bool pairs)
{
    if (!pairs || i >= 2 * half)
        return i;
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

/* Moves the vectors of one layer and side that a cache would hold; they come in the order of the file. */
static void apply_change(const struct oracle *r, unsigned layer, enum side side, size_t n, double *x)
{
    const struct oracle_change *c = r->change;
    size_t d = r->o->d, half = r->o->n_rot / 2;
    bool pairs = side == SIDE_K && strcmp(r->o->architecture, "llama") == 0;

    if (!c || c->layer != layer || c->side != side)
        return;

    for (size_t at = 0; at < n * r->o->n_kv_heads * d; at += d)
        for (size_t i = 0; i < d; i++)
            x[at + position(i, half, pairs)] += c->step * (double) c->direction[at + i];
}

static void oracle_project(const struct oracle *r, unsigned layer, size_t n, const double *x, double *q,
                           double *k, double *v)
{
    const struct tiny_gguf_options *o = r->o;
    size_t n_q = (size_t) o->n_heads * o->d, n_kv = (size_t) o->n_kv_heads * o->d;
    const float *q_norm = weights(r, "blk.%u.attn_q_norm.weight", layer),
                *k_norm = weights(r, "blk.%u.attn_k_norm.weight", layer);

    for (size_t m = 0; m < n; m++) {
        double y[1024];

        oracle_norm(weights(r, "blk.%u.attn_norm.weight", layer), o->n_embd, x + m * o->n_embd, y);
        oracle_product(weights(r, "blk.%u.attn_q.weight", layer), weights(r, "blk.%u.attn_q.bias", layer),
                       n_q, o->n_embd, y, q + m * n_q);
        oracle_product(weights(r, "blk.%u.attn_k.weight", layer), weights(r, "blk.%u.attn_k.bias", layer),
                       n_kv, o->n_embd, y, k + m * n_kv);
        oracle_product(weights(r, "blk.%u.attn_v.weight", layer), weights(r, "blk.%u.attn_v.bias", layer),
                       n_kv, o->n_embd, y, v + m * n_kv);
        for (size_t h = 0; h < o->n_heads; h++) {
            if (q_norm)
                oracle_norm(q_norm, o->d, q + m * n_q + h * o->d, q + m * n_q + h * o->d);
            turn(r, q + m * n_q + h * o->d, m);
        }

        for (size_t h = 0; k_norm && h < o->n_kv_heads; h++)
            oracle_norm(k_norm, o->d, k + m * n_kv + h * o->d, k + m * n_kv + h * o->d);
    }

    apply_change(r, layer, SIDE_K, n, k);
    apply_change(r, layer, SIDE_V, n, v);
    for (size_t m = 0; m < n; m++)
        for (size_t h = 0; h < o->n_kv_heads; h++)
            turn(r, k + m * n_kv + h * o->d, m);
}

/* One query: softmax over all keys up to its position. */
static void oracle_look(const struct oracle *r, const double *q, const double *k, const double *v, size_t m,
                        double *out)
{
    size_t d = r->o->d, n_kv = (size_t) r->o->n_kv_heads * d;
    double sum = 0.0;

    memset(out, 0, d * sizeof(*out));
    for (size_t n = 0; n <= m; n++) {
        double s = 0.0;

        for (size_t i = 0; i < d; i++)
            s += q[i] * k[n * n_kv + i];
        s = exp(s / sqrt((double) d)); /* scores are small here: no maximum is needed */
        sum += s;
        for (size_t i = 0; i < d; i++)
            out[i] += s * v[n * n_kv + i];
    }

    for (size_t i = 0; i < d; i++)
        out[i] /= sum;
}

static void oracle_layer(const struct oracle *r, unsigned layer, size_t n, double *x)
{
    const struct tiny_gguf_options *o = r->o;
    size_t d = o->d, n_q = (size_t) o->n_heads * d, n_kv = (size_t) o->n_kv_heads * d;
    _cleanup_(freep) double *q = calloc(n * n_q, sizeof(double)), *k = calloc(n * n_kv, sizeof(double));
    _cleanup_(freep) double *v = calloc(n * n_kv, sizeof(double));

    assert(q && k && v);
    oracle_project(r, layer, n, x, q, k, v);
    for (size_t m = 0; m < n; m++) {
        double mixed[1024], y[1024], gate[2048], up[2048];

        for (size_t h = 0; h < o->n_heads; h++) {
            size_t kv = h / (o->n_heads / o->n_kv_heads) * d;

            oracle_look(r, q + m * n_q + h * d, k + kv, v + kv, m, mixed + h * d);
        }

        oracle_product(weights(r, "blk.%u.attn_output.weight", layer), NULL, o->n_embd, n_q, mixed, y);
        for (size_t i = 0; i < o->n_embd; i++)
            x[m * o->n_embd + i] += y[i];
        oracle_norm(weights(r, "blk.%u.ffn_norm.weight", layer), o->n_embd, x + m * o->n_embd, y);
        oracle_product(weights(r, "blk.%u.ffn_gate.weight", layer), NULL, o->n_ff, o->n_embd, y, gate);
        oracle_product(weights(r, "blk.%u.ffn_up.weight", layer), NULL, o->n_ff, o->n_embd, y, up);
        for (size_t i = 0; i < o->n_ff; i++)
            gate[i] *= up[i] / (1.0 + exp(-gate[i]));
        oracle_product(weights(r, "blk.%u.ffn_down.weight", layer), NULL, o->n_embd, o->n_ff, gate, y);
        for (size_t i = 0; i < o->n_embd; i++)
            x[m * o->n_embd + i] += y[i];
    }
}

/* Logits of all tokens, [n, vocabulary]. */
double *oracle_logits(const struct tiny_gguf *t, const uint32_t *tokens, size_t n,
                      const struct oracle_change *change)
{
    struct oracle r = {.t = t, .o = tiny_gguf_shape(t), .change = change};
    size_t n_embd = r.o->n_embd;
    const float *embd = weights(&r, "token_embd.weight", 0), *head = weights(&r, "output.weight", 0);
    _cleanup_(freep) double *x = calloc(n * n_embd, sizeof(double));
    double *logits = calloc(n * TINY_GGUF_VOCAB, sizeof(double));

    assert(x && logits && n_embd <= 1024 && r.o->n_ff <= 2048 && r.o->n_heads * r.o->d <= 1024);
    oracle_rope(&r);
    for (size_t m = 0; m < n; m++)
        for (size_t i = 0; i < n_embd; i++)
            x[m * n_embd + i] = (double) embd[tokens[m] * n_embd + i];
    for (unsigned layer = 0; layer < r.o->n_layers; layer++)
        oracle_layer(&r, layer, n, x);
    for (size_t m = 0; m < n; m++) {
        double y[1024];

        oracle_norm(weights(&r, "output_norm.weight", 0), n_embd, x + m * n_embd, y);
        oracle_product(head ? head : embd, NULL, TINY_GGUF_VOCAB, n_embd, y, logits + m * TINY_GGUF_VOCAB);
    }

    return logits;
}
