/* Minimum, median, 99th percentile; see timing.h. */
#include "tools/bench/timing.h"

#include "alloc/math/sort.h"
struct timing timing_of(double *samples, size_t n)
{
    sort_doubles(samples, n);
    return (struct timing){samples[0], samples[n / 2], samples[(n * 99 + 99) / 100 - 1]};
}

json_t *timing_json(struct timing t, double scale)
{
    return json_pack("{s:f, s:f, s:f}", "min", t.min * scale, "median", t.median * scale, "p99",
                     t.p99 * scale);
}
