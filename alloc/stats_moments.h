/*
 * Solving from moments (DESIGN 3.5): statistics in which joint covariances of keys and values stand in for
 * vectors.
 */
#pragma once

struct errmsg;
struct moments;
struct stats;

/**
 * stats_from_moments() - statistics that a solver takes, without vectors
 * @metric_from: where the metrics come from: full statistics of the same model; NULL: squared error only
 *
 * Means, covariances and cross-covariances are @m's; query moments, metric sums and depth weights those of
 * @metric_from. Such statistics can be solved, by `bands` with gaussian curves and levels that are not
 * fitted; they cannot be added to, merged or saved: their parts can.
 *
 * Return: 0; -EINVAL: another model, geometry or sinks than @metric_from, or a head that no token was counted
 * of; -ENOMEM.
 */
int stats_from_moments(const struct moments *m, const struct stats *metric_from, struct stats **ret_stats,
                       struct errmsg *e);
