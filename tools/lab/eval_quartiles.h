/* The distortion e'Me of a table in each quarter of the layers, for `kvcobra eval --quartiles=STATS`. */
#pragma once

#include <stdint.h>

#include "tools/lab/eval_report.h"

struct errmsg;

/**
 * quartile_distortion() - a table's distortion e'Me by quarter of the layers, under the metric of its solve
 * @statistics: path of the statistics that the table was solved from; others are refused
 * @sides:      bits of kvc_eval_options: sides that are counted; 0 = both
 *
 * Return: 0 or a negative errno with a sentence.
 */
int quartile_distortion(const char *table, const char *statistics, uint32_t sides,
                        double ret_distortion[static EVAL_PARTS], struct errmsg *e);
