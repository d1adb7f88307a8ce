/*
 * Statistics as they would be if keys were taken after RoPE: for measuring what the paper's appendix
 * "Post-RoPE experiments" measures. Tables solved from them are for evaluation only: no cache rotates keys
 * before it codes them.
 */
#pragma once

struct errmsg;
struct stats;

/**
 * stats_rotated() - a copy with rotated keys
 * @ret_stats: owned by the caller
 *
 * Sampled keys are turned by their own positions; mean and scatter of keys are then those of the samples,
 * scaled to all tokens, so nothing is assumed about how keys depend on positions. What exists as sums only
 * (query moments, key metrics) is averaged over rotations by the sampled positions, R(p) M R(p)', which takes
 * them to be alike at all positions. Values and depth weights stay.
 *
 * Return: 0; -EINVAL: no sampled tokens, or a window unfinished; -ENOMEM.
 */
int stats_rotated(const struct stats *s, struct stats **ret_stats, struct errmsg *e);
