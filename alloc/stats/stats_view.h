/*
 * First and second moments of the statistics, and the sampled vectors, for codecs of other kinds
 * (lab/comparators/). Head-sides are numbered as in geometry.h.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct stats;

/* Mean [d]; borrowed. */
const double *stats_mean(const struct stats *s, uint32_t head_side);

/* Covariance [d, d], centred. Zeros without tokens. */
void stats_covariance(const struct stats *s, uint32_t head_side, double *ret);

/* E[q q'] [d, d] of the queries that read one KV head, mean over tokens and the group, not centred.
 * Return: 0; -ENODATA: statistics without queries. */
int stats_query_moment(const struct stats *s, uint32_t layer, uint32_t head, double *ret);

/* Sampled vectors [stats_samples(), d] of one head-side; the same tokens for all of them. The caller frees
 * them. NULL: out of memory. */
float *stats_sampled(const struct stats *s, uint32_t head_side);
