/*
 * What a table would do to vectors that have given moments: normal vectors are drawn, encoded and decoded as
 * a client does it, and the errors are weighed by a metric. The same draws for every table: differences are
 * not luck.
 *
 * Moments know one head's keys and values together, but no head together with another: a table that predicts
 * values from all heads of a layer cannot be judged by them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/solve.h"

struct errmsg;
struct moments;
struct stats;

/**
 * moments_distortion() - mean harm of a table per token, summed over layers and heads
 * @s:        made of @m by stats_from_moments(): metric and depth weights
 * @o:        metric, temper and depth_weights are used
 * @n_tokens: drawn per head, rounded up to whole chunks
 * @ret_harm: [2] by side
 *
 * Return: 0; -EOPNOTSUPP: values predicted from all heads of a layer; -EINVAL: another model, geometry or
 * metric; -EDOM: moments without a root; -ENOMEM.
 */
int moments_distortion(const struct moments *m, const struct stats *s, const struct solve_options *o,
                       const void *table_bytes, size_t n_bytes, size_t n_tokens, double ret_distortion[2],
                       struct errmsg *e);
