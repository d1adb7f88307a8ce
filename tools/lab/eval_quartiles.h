/* The harm that a solver counted in each quarter of the layers: for `kvcobra eval --quartiles=STATS`. */
#pragma once

#include <stdint.h>

#include "tools/lab/eval_report.h"

struct errmsg;

/**
 * quartile_distortion() - a table's harm by quarter of the layers, as its own solve counts it
 * @statistics: path; what the table was made of, others are refused
 * @sides:      bits of kvc_eval_options: whose harm is counted; 0 = both
 *
 * Return: 0 or a negative errno with a sentence.
 */
int quartile_distortion(const char *table, const char *statistics, uint32_t sides,
                        double ret_distortion[static EVAL_PARTS], struct errmsg *e);
