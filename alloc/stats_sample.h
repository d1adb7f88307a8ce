/*
 * The sample of tokens whose vectors are stored: those with the smallest keyed hash of
 * (seed, document, position). The choice does not depend on the order of windows, so statistics
 * of parts merge to those of the whole.
 */
#pragma once

#include <stdint.h>

struct errmsg;
struct stats;

/* SipHash-2-4 of (document, position), keyed by the seed. */
uint64_t stats_token_hash(uint64_t seed, uint64_t document, uint64_t position);

/* Chooses the tokens of s->window that get slots; called before its first layer.
 * Return: 0; -EINVAL: a token of the window was added before, named; -ENOMEM. Nothing changed on failure. */
int stats_sample_draw(struct stats *s, struct errmsg *e);

/* Copies the drawn rows of one layer: x[side] [n, n_kv_heads, d]. */
void stats_sample_copy(struct stats *s, uint32_t layer, const float *const x[2]);

/* Adds @other's samples to @s and keeps the n_samples smallest hashes. Return: 0;
 * -EINVAL: a token is in both; -ENOMEM. */
int stats_sample_merge(struct stats *s, const struct stats *other, struct errmsg *e);
