/*
 * The metric M of a head-side (DESIGN 3.1): averages over key positions, computed from the sums of the
 * statistics. Used by the solvers, by depth.c and by `kvcobra inspect`.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/solve/solve_names.h"
#include "alloc/table/geometry.h"

struct errmsg;
struct stats;

/* Whether the statistics hold the sums of @m. Return: 0; -EINVAL with a
 * sentence that names the missing ones. */
int metric_available(const struct stats *s, enum metric m, struct errmsg *e);

/* The metric of bands without a choice of the caller: the best that the statistics have; alloc/README.md has
 * figures ("What tables cost"). */
enum metric metric_best(const struct stats *s);

/* A tempered metric is M^power scaled to the trace of M: the strongest directions count for less. `fisher`
 * and `output` measured better at this power than at 1 (DESIGN 3.1, EXPERIMENTS.md). */
#define METRIC_FISHER_POWER 0.75
#define METRIC_OUTPUT_POWER 0.75

static inline bool metric_tempers(enum metric m)
{
    return m == METRIC_ATTENTION || m == METRIC_FISHER || m == METRIC_OUTPUT;
}

/* M is raised to this power: @power (struct solve_options.temper), or the power of @m if @power is 0. */
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

/* sQ^2 of the paper's KL weight: ret_w[i] = u_i' E[q q'] u_i for the rows u_i of
 * @basis [d, d], mean over the group. */
void metric_query_variance(const struct stats *s, uint32_t layer, uint32_t head, const double *basis,
                           double *ret_w);

/**
 * metric_depth_weight() - omega(layer, side): the factor on the curves of its heads
 *
 * KL / D. A KL below 1e-6 is noise: the median of the side replaces it. If any layer and side is not
 * measured, the weight is 1 for all: measured and unmeasured ones have no common scale.
 */
double metric_depth_weight(const struct stats *s, uint32_t layer, enum side side);
