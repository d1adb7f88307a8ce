/*
 * The distortion of a table on vectors with given moments: normal vectors are drawn, encoded and decoded by
 * the public API, and their errors weighed by a metric. All tables get the same draws, so that differences
 * between tables are not random. For `kvcobra recalibrate`.
 *
 * Joint moments (alloc/moments/moments.h) give keys that depend on the keys of other heads, and values that
 * depend on all of these keys. A table that predicts values from all heads of a layer needs such vectors.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solve/solve.h"

struct errmsg;
struct moments;
struct stats;

/**
 * moments_distortion() - mean distortion e'Me of a table per token, summed over layers and heads
 * @s:        made of @m by stats_from_moments(): metric and depth weights
 * @o:        metric, temper and depth_weights are used
 * @n_tokens: drawn per head, rounded up to whole chunks
 * @ret_distortion: [2] by side
 *
 * Return: 0; -EOPNOTSUPP: values predicted from all heads of a layer, and the moments are not joint; -EINVAL:
 * another model, geometry or metric; -EDOM: moments without a root; -ENOMEM.
 */
int moments_distortion(const struct moments *m, const struct stats *s, const struct solve_options *o,
                       const void *table_bytes, size_t n_bytes, size_t n_tokens, double ret_distortion[2],
                       struct errmsg *e);
