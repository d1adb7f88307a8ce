/* See offload_rate.h. */
#include "daemon/offload/offload_rate.h"

#include <assert.h>

#define PART_NS UINT64_C(1000000000) /* a burst without an end is measured in parts */
#define NEW_SHARE 0.25

void offload_rate_begin(struct offload_rate *r, uint64_t now_ns)
{
    if (r->n_running++ > 0)
        return;

    r->since_ns = now_ns;
    r->bytes = 0;
}

void offload_rate_end(struct offload_rate *r, uint64_t bytes, uint64_t now_ns)
{
    uint64_t past_ns = now_ns - r->since_ns;
    double rate;

    assert(r->n_running > 0);
    r->bytes += bytes;
    if (--r->n_running > 0 && past_ns < PART_NS)
        return;

    if (r->bytes > 0) { /* pages that do not come say nothing about those that do */
        rate = (double) r->bytes / ((double) (past_ns > 0 ? past_ns : 1) * 1e-9);
        r->bytes_per_s = r->bytes_per_s > 0 ? r->bytes_per_s + NEW_SHARE * (rate - r->bytes_per_s) : rate;
        r->measured_ns = now_ns;
    }
    r->since_ns = now_ns;
    r->bytes = 0;
}

double offload_rate_now(const struct offload_rate *r, uint64_t now_ns)
{
    return now_ns - r->measured_ns <= OFFLOAD_RATE_KEEP_NS ? r->bytes_per_s : 0;
}

bool offload_rate_reaches(const struct offload_rate *r, uint64_t wanted_bytes_per_s, uint64_t now_ns)
{
    double rate = offload_rate_now(r, now_ns);

    return rate <= 0 || (double) wanted_bytes_per_s <= rate;
}
