/*
 * The network of the Llama family in binary64, written from the formulas without code of the engine. The
 * forward and backward passes are compared with it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"
#include "tests/lib/tiny_gguf.h"

/* The keys or values of one layer, as a cache holds them (keys after norm per head, before RoPE, half-split),
 * moved by step * direction. */
struct oracle_change {
    uint32_t layer;
    enum side side;
    const float *direction; /* [n, n_kv_heads, d] */
    double step;
};

/* Logits of all tokens, [n, vocabulary]; malloc'ed. @change: NULL for none. */
double *oracle_logits(const struct tiny_gguf *t, const uint32_t *tokens, size_t n,
                      const struct oracle_change *change);

/* y = W x + b; @b may be NULL. */
void oracle_product(const float *w, const float *b, size_t rows, size_t cols, const double *x, double *y);

/* y = w x / sqrt(mean(x^2) + 1e-5); @y may be @x. */
void oracle_norm(const float *w, size_t n, const double *x, double *y);
