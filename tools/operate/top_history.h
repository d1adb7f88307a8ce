/*
 * What `kvcobra top` has seen since it began: hit rate, use of the pool and evictions of each interval, drawn
 * as columns of characters. It holds the newest TOP_HISTORY_MAX intervals.
 */
#pragma once

#include <stdio.h>

#include "tools/operate/top_moment.h"

enum { TOP_HISTORY_MAX = 512 };

struct top_sample {
    double seconds;   /* of the interval */
    double hit_share; /* 0..1 of the looked-up chunks; below 0: none was looked up */
    double pool_share;
    double evictions; /* per second */
};

struct top_history { /* zeros at first */
    struct top_sample ring[TOP_HISTORY_MAX];
    size_t n, next; /* samples so far, at most TOP_HISTORY_MAX; where the next one goes */
};

/* The interval between two moments. @before NULL: there is none, and nothing is added. */
void top_history_add(struct top_history *h, const struct top_moment *now, const struct top_moment *before);

/* Prints the charts in lines of at most @width columns, the newest interval at the right. */
void top_history_print(const struct top_history *h, unsigned width, FILE *f);
