/* Internals of the engine: engine.c opens and closes it, forward.c and backward*.c compute. */
#pragma once

#include "tools/engine/engine.h"
#include "tools/engine/linear.h"
#include "tools/engine/network.h"

struct gguf;

/* Activations of one pass; grown to the longest pass so far. */
struct activations {
    size_t n;         /* tokens that fit */
    float *normed;    /* [n, n_embd] */
    float *q, *mixed; /* [n, n_heads, d]: queries; output of attention */
    float *k, *v;     /* [n, n_kv_heads, d] */
    float *gate, *up; /* [FF_TOKENS, n_ff] */
    float *projected; /* [n, n_embd] */
};

#define FF_TOKENS 512 /* tokens whose widest activations are held at a time */

struct engine {
    struct gguf *gguf;
    struct network net;
    struct tokenizer *tokenizer;
    struct engine_info info;
    struct threads *threads;
    struct linear linear;
    struct activations act;
    engine_tap tap;
    void *tap_ctx;
};

/* ---- parts of the forward pass (forward.c) that the backward pass calls ---- */

/* Activations for @n tokens. */
int forward_reserve(struct engine *en, size_t n, struct errmsg *e);

/* y = norm(x), vectors of @n; @y may be @x. */
void forward_norm(const float *x, const float *weight, size_t n, double epsilon, float *y);

/* The same for @n tokens of n_embd. */
void forward_normalise(struct engine *en, const float *x, const float *weight, size_t n, float *y);

/*
 * act.q, act.k and act.v from @hidden [n, n_embd], in half-split order, before RoPE. Without @norm_heads,
 * before the norms per head and q_unrotated_scale.
 */
void forward_project(struct engine *en, uint32_t layer, size_t n, const float *hidden, bool norm_heads);

/* The two halves of a layer; @hidden is updated in place. engine_layers() consists of them. */
int forward_attention(struct engine *en, struct kv_cache *cache, uint32_t layer, size_t n, float *hidden,
                      struct errmsg *e);
void forward_feed(struct engine *en, uint32_t layer, size_t n, float *hidden);
