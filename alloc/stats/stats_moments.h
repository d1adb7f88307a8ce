/*
 * Solving from moments (DESIGN 3.5): statistics that hold joint covariances
 * of keys and values instead of vectors.
 */
#pragma once

struct errmsg;
struct moments;
struct stats;

/**
 * stats_from_moments() - statistics for a solver, without vectors
 * @metric_from: full statistics of the same model, which give the metrics; NULL: squared error only
 *
 * Means, covariances and cross-covariances come from @m; query moments, metric sums and depth weights come
 * from @metric_from. `bands` can solve such statistics, with gaussian curves and levels that are not fitted.
 * They accept no windows and cannot be merged or saved; @m and @metric_from can.
 *
 * Return: 0; -EINVAL: another model, geometry or sinks than @metric_from, or a head without tokens; -ENOMEM.
 */
int stats_from_moments(const struct moments *m, const struct stats *metric_from, struct stats **ret_stats,
                       struct errmsg *e);
