/* Counters of requests; see metrics.h. */
#include "daemon/loop/metrics.h"

#include <time.h>

const uint32_t metrics_bucket_us[METRICS_BUCKETS - 1] = {
    10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 100000, 1000000,
};

uint64_t metrics_now_ns(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

void metrics_note_request(struct metrics *m, unsigned type, uint64_t ns, int err)
{
    struct metrics_latency *l = &m->requests[type < METRICS_TYPES_MAX ? type : 0];
    unsigned b = 0;

    while (b < METRICS_BUCKETS - 1 && ns > (uint64_t) metrics_bucket_us[b] * 1000)
        b++;
    l->counts[b]++;
    l->sum_ns += ns;
    metrics_note_error(m, err);
}

void metrics_note_error(struct metrics *m, int err)
{
    unsigned n = (unsigned) (err < 0 ? -err : err);

    if (n > 0)
        m->errors[n < METRICS_ERRNO_MAX ? n : METRICS_ERRNO_MAX - 1]++;
}
