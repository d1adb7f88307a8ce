/* The engine from the inside: engine.c opens and closes it, forward.c computes. */
#pragma once

#include "tools/engine/engine.h"
#include "tools/engine/linear.h"
#include "tools/engine/network.h"

struct gguf;

/* Activations of one pass; grown to the longest pass so far. */
struct activations {
    size_t n; /* tokens that fit */
    float *normed;      /* [n, n_embd] */
    float *q, *mixed;   /* [n, n_heads, d]: queries; what attention gives */
    float *k, *v;       /* [n, n_kv_heads, d] */
    float *gate, *up;   /* [FF_TOKENS, n_ff] */
    float *projected;   /* [n, n_embd] */
};

#define FF_TOKENS 512 /* the widest activations are held for so many tokens at a time */

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
