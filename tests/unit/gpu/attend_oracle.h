/* Decodes, then attends, in binary64, one key and one query at a time. Results of packed and dense
 * attention are compared with it. Shares no code with gpu/ except half_tile_get(), which test_half_tile.c
 * compares with bytes worked by hand. */
#pragma once

#include "gpu/attend.h"

/* Quality of a result: root of the mean squared error, relative to the weighted
 * size of the values that were averaged. */
struct oracle_report {
    double error;          /* sqrt(sum |o - o_oracle|^2) / sqrt(sum_rows sum_n p_n |v_n|^2) */
    double tolerance;      /* derived from the case; see attend_oracle.c */
    double tolerance_half; /* the same for arithmetic that rounds to about ten bits */
    /* effect of rounding one factor of scores, or weights, to binary16; see attend_oracle.c */
    double score_rounding, weight_rounding;
};

struct decode_ops;

/* Compares the contents of a->out. @whole: the loops in whole numbers that may have computed it, or NULL. */
struct oracle_report oracle_packed(const struct attend_args *a, const struct decode_ops *whole);
struct oracle_report oracle_dense(const struct attend_dense_args *a);
