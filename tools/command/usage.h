/* What this process has used so far: processor time and memory. */
#pragma once

#include <stdint.h>
#include <sys/resource.h>

static inline uint64_t usage_peak_bytes(void)
{
    struct rusage u = {0};

    (void) getrusage(RUSAGE_SELF, &u);
    return (uint64_t) u.ru_maxrss * 1024;
}

/* Of all threads, in user mode and in the kernel. */
static inline double usage_cpu_seconds(void)
{
    struct rusage u = {0};

    (void) getrusage(RUSAGE_SELF, &u);
    return (double) (u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double) (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}
