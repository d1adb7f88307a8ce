/*
 * A table solved in the same way from keys after RoPE, for `kvcobra eval --post-rope`. It is never written to
 * a file, since only the cache of an evaluation reads it correctly.
 */
#pragma once

#include <stddef.h>

struct errmsg;
struct progress;
struct solve_options;
struct stats;
struct table;

/**
 * post_rope_options() - check that @t was solved from @s, and return the options
 * @table, @statistics: their paths, for sentences
 *
 * Return: 0; -EINVAL: solved from other statistics; -ENODATA: the provenance does not name its statistics.
 */
int post_rope_options(const struct table *t, const char *table, const struct stats *s, const char *statistics,
                      struct solve_options *ret, struct errmsg *e);

/**
 * post_rope_table() - solve a table's statistics again with rotated keys
 * @table:      path of the table; its options are used
 * @statistics: path of the statistics that it was solved from; others are refused
 * @p:          started; updated while solving
 * @ret_bytes:  malloc'ed
 *
 * Return: 0 or a negative errno with a sentence.
 */
int post_rope_table(const char *table, const char *statistics, struct progress *p, void **ret_bytes,
                    size_t *ret_n_bytes, struct errmsg *e);
