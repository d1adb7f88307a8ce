/* Choosing the next token, and negative log-likelihood and KL of next-token distributions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t sampler_greedy(const float *logits, size_t n_vocab);

/* Softmax sampling at @temperature > 0 with a seeded generator; the state advances. */
struct sampler_state {
    uint64_t s[2];
};
void sampler_seed(struct sampler_state *st, uint64_t seed);
uint32_t sampler_softmax(const float *logits, size_t n_vocab, float temperature, struct sampler_state *st);

/* -log p(token), nats, in binary64. */
double sampler_nll(const float *logits, size_t n_vocab, uint32_t token);
/* KL(p || q) of the two softmax distributions, nats. */
double sampler_kl(const float *logits_p, const float *logits_q, size_t n_vocab);
