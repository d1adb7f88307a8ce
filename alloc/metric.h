/*
 * The metric of a head-side as the solvers want it: averages over key positions, made from the sums of the
 * statistics. DESIGN 3.1.
 */
#pragma once

#include <stdint.h>

#include "alloc/geometry.h"
#include "alloc/solve.h"

struct errmsg;
struct stats;

/* Whether the statistics can make @m: 0, or -EINVAL with a sentence that says what they lack. */
int metric_available(const struct stats *s, enum metric m, struct errmsg *e);

/* M^power at the trace of M: tempered, the strongest directions count for less. Both measured better so than
 * plain (DESIGN 3.1, EXPERIMENTS.md). */
#define METRIC_FISHER_POWER 0.75
#define METRIC_OUTPUT_POWER 0.75

static inline bool metric_tempers(enum metric m)
{
    return m == METRIC_ATTENTION || m == METRIC_FISHER || m == METRIC_OUTPUT;
}

/* The power that M is raised to if @power, of struct solve_options, is asked for; 0: the metric's own. */
double metric_power(enum metric m, double power);

/**
 * metric_matrix() - M of one head-side
 * @power:      see metric_power(); mse and query are never tempered
 * @covariance: [d, d] of the same head-side: `query` is diagonal in its eigenbasis
 * @ret_M:      [d, d] symmetric
 *
 * Values under `query`: identity.
 *
 * Return: 0; -EDOM (no eigenvalues); -ENOMEM. @m is available.
 */
int metric_matrix(const struct stats *s, enum metric m, double power, uint32_t layer, uint32_t head,
                  enum side side, const double *covariance, double *ret_M);

/* sQ^2 of the paper's KL weight: ret_w[i] = u_i' E[q q'] u_i for the rows u_i of @basis [d, d], mean over the
 * group. */
void metric_query_variance(const struct stats *s, uint32_t layer, uint32_t head, const double *basis,
                           double *ret_w);

/**
 * metric_depth_weight() - omega(layer, side): what the curves of its heads are multiplied by
 *
 * KL / D where measured; a KL below 1e-6 is noise and takes the median of its side. 1 for all unless every
 * layer and side is measured: weights and no weights do not mix.
 */
double metric_depth_weight(const struct stats *s, uint32_t layer, enum side side);
