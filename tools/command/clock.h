/* Monotonic time in seconds, for rates and timeouts. */
#pragma once

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}
