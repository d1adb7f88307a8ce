/* The distortion e'Me of a table in each quarter of the layers, for `kvcobra eval --quartiles=STATS`. */
#pragma once

#include <stdint.h>

#include "tools/eval/eval_report.h"

struct errmsg;
struct solve_options;
struct stats;
struct table;

/**
 * quartile_distortion() - a table's distortion e'Me by quarter of the layers, under the metric of its solve
 * @statistics: path of the statistics that the table was solved from; others are refused
 * @sides:      bits of kvc_eval_options: sides that are counted; 0 = both
 *
 * Return: 0 or a negative errno with a sentence.
 */
int quartile_distortion(const char *table, const char *statistics, uint32_t sides,
                        double ret_distortion[static EVAL_PARTS], struct errmsg *e);

/**
 * eval_solve_options() - check that @t was solved from @s, and return the options
 * @table, @statistics: their paths, for sentences
 *
 * Return: 0; -EINVAL: solved from other statistics; -ENODATA: the provenance does not name its statistics.
 */
int eval_solve_options(const struct table *t, const char *table, const struct stats *s,
                       const char *statistics, struct solve_options *ret, struct errmsg *e);
