/*
 * Decode, then attend, in binary64, one key and one query at a time: what packed and dense attention are held
 * against. Shares no code with gpu/ but half_tile_get(), which test_layout.c holds against bytes worked by
 * hand.
 */
#pragma once

#include "gpu/attend.h"

/* Quality of a result: root of the mean squared error over the weighted size of the values that were
 * averaged. */
struct oracle_report {
    double error;          /* sqrt(sum |o - o_oracle|^2) / sqrt(sum_rows sum_n p_n |v_n|^2) */
    double tolerance;      /* derived from the case; see oracle.c */
    double tolerance_half; /* the same for arithmetic that rounds to ten bits or so */
    double score_rounding,
        weight_rounding; /* what rounding one factor of scores, or weights, to binary16 does; see oracle.c */
};

struct decode_ops;

/* Compares what a->out holds. @whole: the loops in whole numbers that may have made it, or NULL. */
struct oracle_report oracle_packed(const struct attend_args *a, const struct decode_ops *whole);
struct oracle_report oracle_dense(const struct attend_dense_args *a);
