/* Minimum, median, 99th percentile; see timing.h. */
#include "tools/timing.h"

#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

struct timing timing_of(double *samples, size_t n)
{
    qsort(samples, n, sizeof(*samples), compare_doubles);
    return (struct timing) { samples[0], samples[n / 2], samples[(n * 99 + 99) / 100 - 1] };
}

json_t *timing_json(struct timing t, double scale)
{
    return json_pack("{s:f, s:f, s:f}", "min", t.min * scale, "median", t.median * scale, "p99", t.p99 * scale);
}
