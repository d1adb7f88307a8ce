/*
 * The screen of `kvcobra top` as lines of text, made from two readings of a daemon. It uses no terminal, so
 * that tests can read the lines; top_screen.h draws them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proto/kvcobra.pb-c.h"

/* One reading of a daemon. */
struct top_moment {
    double seconds; /* of clock_seconds() at the reading */
    Kvcobra__StatusReply *status;
    Kvcobra__ListTablesReply *tables;
};

enum top_sort {
    TOP_BY_USED,
    TOP_BY_NAME,
    TOP_BY_PAGES,
    TOP_BY_LEASES,
    TOP_BY_HIT_RATE,
    TOP_BY_EVICTIONS,
    TOP_N_SORTS
};

extern const char *const top_sort_names[]; /* by enum top_sort; ends with NULL */

/* Hit rate, use of the pool and evictions of the newest intervals, for charts. */
enum { TOP_HISTORY_MAX = 512 };

struct top_history { /* zeros at first */
    struct top_interval {
        double seconds;
        double hit_share; /* 0..1 of the looked-up chunks; below 0: none was looked up */
        double pool_share;
        double evictions; /* per second */
    } ring[TOP_HISTORY_MAX];
    size_t n, next; /* intervals so far, at most TOP_HISTORY_MAX; where the next one goes */
};

void top_history_add(struct top_history *h, const struct top_moment *now, const struct top_moment *before);

/* How the screen looks; all zeros: as in a pipe. */
struct top_look {
    enum top_sort sort;                /* of tenants; the largest first, names in their order */
    bool colour;                       /* with escape sequences */
    bool keys;                         /* a last line with the keys */
    bool help;                         /* what the columns mean, instead of the tables */
    const struct top_history *history; /* charts instead of the tables; NULL: the tables */
};

/**
 * top_view() - the screen
 * @before: an earlier moment: rates and hit rates are those of the time between; NULL: since the daemon
 *          started
 * @width:  columns; tenants get as many columns as fit, and the line below them names those that do not
 * @height: lines; the last row of a table counts the rows that do not fit. 0: no limit
 *
 * Tables are sorted by pages. Bytes that are not printable ASCII are shown as '?'.
 *
 * Return: lines that end with a newline, the caller frees; NULL: out of memory.
 */
char *top_view(const struct top_moment *now, const struct top_moment *before, const struct top_look *look,
               unsigned width, unsigned height);
