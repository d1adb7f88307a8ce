/* What `kvcobra top` shows, as lines of text: two moments of a daemon, a size, no terminal. */
#pragma once

#include <stddef.h>

#include "client/kvcobra-operator.h"

struct top_moment {
    double seconds; /* when, by clock_seconds() */
    const kvc_status *status;
    const kvc_table_info *tables; /* [n_tables] */
    size_t n_tables;
};

/**
 * top_view() - the screen
 * @before: an earlier moment, rates and hit rates are of the time in between; NULL: since the daemon started
 * @width:  columns; longer lines are cut
 * @height: lines; what does not fit is counted in a last row of its table. 0: no limit
 *
 * Rows are sorted by what they use. Bytes that are no printable ASCII are shown as '?'.
 *
 * Return: lines, each ended by a newline, the caller frees; NULL without memory.
 */
char *top_view(const struct top_moment *now, const struct top_moment *before, unsigned width,
               unsigned height);
