/*
 * Gradients of what a model says by what its cache holds: the reverse pass that the Fisher metric needs
 * (DESIGN 3.1).
 *
 * For one window of tokens, L = sum over positions of log p(y | tokens up to here), each label y drawn from
 * the model's own distribution at its position or given. The result is dL/dk and dL/dv of every layer, k as
 * the cache stores it: after bias and norm per head, before RoPE, half-split. Weights get no gradients.
 *
 * The score functions of different positions are uncorrelated when y is drawn from the model, so one reverse
 * pass of the sum has the expected outer product that one pass per position would have.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct backward; /* scratch, and the hidden states of a window */
struct engine;
struct errmsg;
struct sampler_state;

/* One layer's gradients, the last layer first. @dk, @dv: [n, n_kv_heads, d], borrowed. A non-zero return
 * stops. */
typedef int (*backward_tap)(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv);

/* Bytes that backward_new() takes for windows of @n_max tokens: two hidden states per layer and token, and
 * what one layer needs. UINT64_MAX if that is more than memory can be. */
uint64_t backward_bytes(const struct engine *en, size_t n_max);

/**
 * backward_new() - prepare for windows of up to @n_max tokens
 * @en: borrowed; used by backward_run() as if by engine_layers(), its tap included
 *
 * Return: 0; -EINVAL: no tokens; -EOPNOTSUPP: more than the sliding window; -E2BIG, -ENOMEM.
 */
int backward_new(struct engine *en, size_t n_max, struct backward **ret_backward, struct errmsg *e);
struct backward *backward_free(struct backward *b);
static inline void backward_freep(struct backward **b)
{
    *b = backward_free(*b);
}

/**
 * backward_run() - one window, forward and back
 * @tokens:  [n] at positions 0 .. n - 1, 0 < n <= n_max
 * @sampler: draws the labels, in the order of positions; NULL: they are given
 * @labels:  [n]; read, or written if there is a @sampler
 *
 * The engine's tap sees every layer on the way forward, before @tap sees it on the way back.
 * Return: 0; -EINVAL: a token or label outside the vocabulary, n; -ENOMEM; what a tap returned.
 */
int backward_run(struct backward *b, const uint32_t *tokens, size_t n, struct sampler_state *sampler,
                 uint32_t *labels, backward_tap tap, void *ctx, struct errmsg *e);
