/*
 * Statistics as if keys were captured after RoPE, for the experiments of the paper's appendix "Post-RoPE
 * experiments". Tables solved from them are for evaluation only: no cache rotates keys before it codes them.
 */
#pragma once

struct errmsg;
struct stats;

/**
 * stats_rotated() - a copy with rotated keys
 * @ret_stats: owned by the caller
 *
 * Sampled keys are rotated by their own positions; mean and scatter of keys become those of the samples,
 * scaled to all tokens, so keys may depend on positions in any way. Query moments and key metrics exist as
 * sums only: they are averaged over rotations by the sampled positions, R(p) M R(p)', which assumes that they
 * are equal at all positions. Values and depth weights are copied.
 *
 * Return: 0; -EINVAL: no sampled tokens, or an unfinished window; -ENOMEM.
 */
int stats_rotated(const struct stats *s, struct stats **ret_stats, struct errmsg *e);
