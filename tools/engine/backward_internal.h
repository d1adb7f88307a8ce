/* Internals of the reverse pass: backward.c runs the network, backward_layer.c and backward_attention.c its
 * parts. d_x is dL/dx everywhere. */
#pragma once

#include "tools/engine/backward.h"
#include "tools/engine/engine_internal.h"

struct backward {
    struct engine *en;
    size_t n_max;
    size_t n_parts;            /* of the queries; each has its own sums of d_k and d_v */
    struct exact_cache *exact; /* of the current layer of the forward pass */
    float *cosine, *sine;      /* [n_max, n_rot / 2] */
    float *before, *between;  /* [n_layers][n, n_embd] hidden states before a layer; between its two halves */
    float *d_hidden;          /* [n, n_embd] gradient by the hidden states, layer by layer */
    float *d_normed;          /* [n, n_embd] */
    float *q, *d_q, *d_mixed; /* [n, n_heads, d]; q as attention multiplies it: normalised, rotated, scaled */
    float *k;                 /* [n, n_kv_heads, d] normalised, rotated */
    float *d_k, *d_v;         /* [n_parts][n, n_kv_heads, d] */
    float *d_wide;            /* [FF_TOKENS, n_ff] */
    float *logits;            /* [HEAD_TOKENS, n_vocab] */
    float *scratch;           /* [n_workers][backward_attention_floats()] */
    float *arena;             /* owns all of the above */
};

/* Calls @one for tokens 0 .. n - 1 on the engine's workers. */
void backward_each_token(struct backward *b, size_t n, void (*one)(void *ctx, size_t token), void *ctx);

/* d_x from d_y of y = w x / sqrt(mean(x^2) + eps), vectors of @n; added to @d_x if @add. @d_x may be
 * @d_y or @x. */
void backward_norm(const float *x, const float *weight, size_t n, double epsilon, const float *d_y, bool add,
                   float *d_x);

/* The same for all tokens, [n, n_embd], from d_normed through a norm of @x, added to d_hidden. */
void backward_norm_all(struct backward *b, const float *x, const float *weight, size_t n);

/* Takes d_hidden from the output of the layer to its input, and calls @tap. After layer 0, d_hidden is
 * undefined. */
int backward_layer(struct backward *b, uint32_t layer, size_t n, backward_tap tap, void *ctx);

/**
 * backward_attention() - compute d_q, d_k and d_v, before rotation, from d_mixed
 *
 * The first part of d_k and d_v receives the sums of all parts. act.q, act.k and act.v hold the projections
 * without norms per head and are not changed.
 */
void backward_attention(struct backward *b, uint32_t layer, size_t n);

/* Floats of scratch per worker, and parts of the queries. */
size_t backward_attention_floats(const struct geometry *g, size_t n);
size_t backward_attention_parts(const struct geometry *g);
