/* Repeated measurements in three figures, the same way in every bench. */
#pragma once

#include <jansson.h>
#include <stddef.h>

/* Seconds, or whatever was measured. */
struct timing {
    double min, median, p99;
};

/* @samples: [n], n > 0, sorted in place. The median of an even number is the upper one; p99 by nearest rank.
 */
struct timing timing_of(double *samples, size_t n);

/* {"min", "median", "p99"}, each times @scale. NULL without memory. */
json_t *timing_json(struct timing t, double scale);
