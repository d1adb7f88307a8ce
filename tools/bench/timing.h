/* Minimum, median and 99th percentile of repeated measurements, for all benches. */
#pragma once

#include <jansson.h>
#include <stddef.h>

/* In the unit of the samples. */
struct timing {
    double min, median, p99;
};

/* @samples: [n], n > 0, sorted in place. The median of an even number is the upper one; p99 by nearest
 * rank. */
struct timing timing_of(double *samples, size_t n);

/* {"min", "median", "p99"}, each times @scale. NULL when out of memory. */
json_t *timing_json(struct timing t, double scale);
