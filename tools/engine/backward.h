/*
 * Gradients of a model's log-probabilities by the vectors of its cache: the reverse pass for the Fisher
 * metric (DESIGN 3.1).
 *
 * For one window of tokens, L = sum over positions of log p(y | tokens up to here), each label y sampled from
 * the model's distribution at its position, or given. The result is dL/dk and dL/dv of every layer, k as
 * stored by the cache: after bias and norm per head, before RoPE, half-split. Weights get no gradients.
 *
 * The score functions of different positions are uncorrelated when y is drawn from the model, so one reverse
 * pass of the sum has the same expected outer product as one pass per position.
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
 * the scratch of one layer. UINT64_MAX if that overflows. */
uint64_t backward_bytes(const struct engine *en, size_t n_max);

/**
 * backward_new() - prepare for windows of up to @n_max tokens
 * @en: borrowed; used by backward_run() like by engine_layers(), with its tap
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
 * backward_run() - run one window forward and backward
 * @tokens:  [n] at positions 0 .. n - 1, 0 < n <= n_max
 * @sampler: samples the labels in the order of positions; NULL: @labels is given
 * @labels:  [n]; input, or output if there is a @sampler
 *
 * The engine's tap gets every layer in the forward pass, before @tap gets it in the backward pass.
 * Return: 0; -EINVAL: a token or label outside the vocabulary, n; -ENOMEM; the return value of a tap.
 */
int backward_run(struct backward *b, const uint32_t *tokens, size_t n, struct sampler_state *sampler,
                 uint32_t *labels, backward_tap tap, void *ctx, struct errmsg *e);
