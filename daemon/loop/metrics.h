/*
 * Counters of requests for the metrics: requests by type with their latency, errors by errno. All other
 * metrics (operator/metrics_table.h) are read from the daemon's state.
 *
 * Only the loop's thread writes them, once per reply.
 */
#pragma once

#include <stdint.h>

#define METRICS_TYPES_MAX 64 /* field numbers of request bodies in kvcobra.proto; 0: unknown requests */
#define METRICS_ERRNO_MAX 256
#define METRICS_BUCKETS 14

/* Upper bounds of the latency histogram, in microseconds; the last bucket has none. */
extern const uint32_t metrics_bucket_us[METRICS_BUCKETS - 1];

struct metrics_latency {
    uint64_t counts[METRICS_BUCKETS]; /* each observation counts in one bucket */
    uint64_t sum_ns;
};

struct metrics {
    struct metrics_latency requests[METRICS_TYPES_MAX]; /* by field number of the body */
    uint64_t errors[METRICS_ERRNO_MAX]; /* replies by errno; the last one counts all above too */
};

/* Counts a reply, sent or not. @type: field number of the request's body; @err: errno, 0 or negative. */
void metrics_note_request(struct metrics *m, unsigned type, uint64_t ns, int err);

/* Counts an item of a reply whose other items may have succeeded. @err: errno of the item, 0 or negative. */
void metrics_note_error(struct metrics *m, int err);

/* CLOCK_MONOTONIC, to measure the latency of metrics_note_request(). */
uint64_t metrics_now_ns(void);
