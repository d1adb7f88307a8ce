/*
 * The screen of `kvcobra top` as lines of text, made from two readings of a daemon. It uses no terminal, so
 * that tests can read the lines; top_screen.h draws them.
 */
#pragma once

#include <stddef.h>

#include "client/kvcobra-operator.h"

struct top_moment {
    double seconds; /* of clock_seconds() at the reading */
    const kvc_status *status;
    const kvc_table_info *tables; /* [n_tables] */
    size_t n_tables;
};

/**
 * top_view() - the screen
 * @before: an earlier moment: rates and hit rates are those of the time between; NULL: since the daemon
 * started
 * @width:  columns; longer lines are cut
 * @height: lines; the last row of a table counts the rows that do not fit. 0: no limit
 *
 * Tenants are sorted by memory, tables by pages. Bytes that are not printable ASCII are shown as '?'.
 *
 * Return: lines that end with a newline, the caller frees; NULL: out of memory.
 */
char *top_view(const struct top_moment *now, const struct top_moment *before, unsigned width,
               unsigned height);
