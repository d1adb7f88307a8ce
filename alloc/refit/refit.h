/*
 * Refitting: a table for the traffic of today from a table that exists and the moments of that traffic. Bits,
 * bases and levels stay. Means, scales of bands, the prediction of values and decoders are fitted again:
 * they carry most of what a table loses on other text, and moments suffice for them. No statistics, no metric
 * and no knapsack are needed. For `kvcobra recalibrate`.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct moments;
struct table;

struct refit_report {
    double error[2]; /* |x - decoded|^2 / |x - mean|^2 by side, mean over layers, of normal vectors */
};

/**
 * refit_table() - the table @t with means, scales, prediction and decoders for the moments @m
 * @share:     how far they move from those of @t to those that fit @m: above 0; 1: all the way
 * @ret_bytes: malloc'ed table file image; its provenance names @t, @m and @share
 *
 * A table that predicts values from all heads of a layer needs joint moments.
 *
 * Return: 0; -EINVAL: other model, geometry or sinks, or too few tokens for the prediction;
 * -EOPNOTSUPP: the moments are not joint, but must be; -EDOM: a covariance without a solution; -ENOMEM.
 */
int refit_table(const struct table *t, const struct moments *m, double share, void **ret_bytes,
                size_t *ret_n_bytes, struct refit_report *ret_report, struct errmsg *e);

/* Whether @t is a refit to just these moments, as its provenance says. */
bool refit_was_from(const struct table *t, const struct moments *m);
