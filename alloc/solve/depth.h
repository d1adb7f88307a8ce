/*
 * The allocator's part of measuring a depth weight (DESIGN 3.1): a table that codes one layer and side alone,
 * and the distortion e'Me of its errors under the attention metric. The caller runs the forward passes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct errmsg;
struct stats;

/* Budgets at which weights are measured: the distortion is far above the noise
 * and still in proportion to the KL. */
#define DEPTH_K_BPD 1.5
#define DEPTH_V_BPD 2.5

/**
 * depth_layer_table() - a table in which only (layer, side) has codes
 * @bpd: bits per number of that layer and side; `bands`, attention metric, N(0,1) levels, no prediction
 *
 * Every other head-side has rank 0: the caller keeps those exact.
 * Return: like solve_table().
 */
int depth_layer_table(const struct stats *s, uint32_t layer, enum side side, double bpd, uint64_t seed,
                      void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e);

struct table;

/**
 * depth_round_trip() - encodes and decodes vectors with one layer and side of such a table
 * @x, @ret_x_hat: [n, n_kv_heads, d], rows @row_stride floats apart; may not overlap
 *
 * Return: 0; -ENOMEM; -EINVAL: a head-side that is predicted from K codes, which are not passed here.
 */
int depth_round_trip(const struct table *t, uint32_t layer, enum side side, const float *x, float *ret_x_hat,
                     size_t n, size_t row_stride);

/**
 * depth_distortion() - mean over tokens of e'Me (squared error in the attention metric M), summed over the
 * heads of (layer, side)
 * @x, @x_hat: [n, n_kv_heads, d] exact and decoded, rows @row_stride floats apart
 * Return: the distortion; NaN: out of memory.
 */
double depth_distortion(const struct stats *s, uint32_t layer, enum side side, const float *x,
                        const float *x_hat, size_t n, size_t row_stride);
