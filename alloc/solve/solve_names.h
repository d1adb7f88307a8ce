/*
 * The choices of a solve (DESIGN 3.1 to 3.4) and their names, as options of the command and
 * provenances of tables spell them. A name is part of the format of a provenance:
 * renaming one changes the digests of tables.
 */
#pragma once

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/table.h"

enum method { METHOD_BANDS = 0, METHOD_PAPER_MSE = 1, METHOD_PAPER_KL = 2, METHOD_DP = 3 };
enum metric { METRIC_MSE = 0, METRIC_QUERY = 1, METRIC_ATTENTION = 2, METRIC_FISHER = 3, METRIC_OUTPUT = 4 };
enum decoder { DECODER_INVERSE = 0, DECODER_LEAST_SQUARES = 1 };
enum curve { CURVE_MEASURED = 0, CURVE_GAUSSIAN = 1, CURVE_BENNETT = 2 };

/* Static strings. */
const char *solve_method_name(enum method m);
const char *solve_metric_name(enum metric m);
const char *solve_curve_name(enum curve c);
const char *solve_prediction_name(enum prediction p);
const char *solve_decoder_name(enum decoder d);
const char *solve_quantiser_name(enum quantiser q);

/* Return: 0; -EINVAL: no such name, and *ret is untouched. */
int solve_method_from_name(const char *name, enum method *ret);
int solve_metric_from_name(const char *name, enum metric *ret);
int solve_curve_from_name(const char *name, enum curve *ret);
int solve_prediction_from_name(const char *name, enum prediction *ret);
int solve_decoder_from_name(const char *name, enum decoder *ret);
int solve_quantiser_from_name(const char *name, enum quantiser *ret);
