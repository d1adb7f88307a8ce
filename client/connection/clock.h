/*
 * The clock of deadlines, waits and reports: monotonic milliseconds. Reading it is no system call where the
 * kernel has a vDSO.
 */
#pragma once

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ms(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);

    return (int64_t) t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
