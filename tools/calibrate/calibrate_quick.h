/* `kvcobra calibrate --quick`: names of its files, and the table that it makes of the statistics. */
#pragma once

#include <jansson.h>

#include "alloc/kvcobra-alloc.h"

struct calibrate_arguments;
struct errmsg;

/* "NAME-quick.stats" for "folder/NAME.gguf", in the current folder; malloc'ed; NULL when out of memory. */
char *calibrate_quick_output(const char *model);

/* Checks the path of the table beside the statistics; @ret_table is malloc'ed. Return: 0; -EINVAL …; with a
 * sentence. */
int calibrate_quick_check(const struct calibrate_arguments *a, char **ret_table, struct errmsg *e);

/* Makes the table of the statistics file, as `kvcobra solve --bpd` does. Return: 0; a negative errno with a
 * sentence. */
int calibrate_quick_solve(const struct calibrate_arguments *a, kvc_alloc *alloc, const char *table,
                          kvc_solve_report *ret, struct errmsg *e);

/* Adds the table to @j, which may be NULL; takes the reference. */
json_t *calibrate_quick_json(json_t *j, const char *table, const kvc_solve_report *report);

/* The table, what it is good for, and how to make a better one. */
void calibrate_quick_print(const struct calibrate_arguments *a, const char *table,
                           const kvc_solve_report *report);
