/*
 * Counters for monitoring: requests by type, their latency, errors by errno. All other metrics are read
 * from the accounts (metrics_collect.c).
 */
#pragma once

#include <stdint.h>

#define METRICS_TYPES_MAX 64 /* numbers of the schema's bodies; 0: requests that it does not have */
#define METRICS_ERRNO_MAX 256
#define METRICS_BUCKETS 14
#define METRICS_REASONS_MAX 8 /* values of the protocol's MissReason */

/* Upper bounds of the latency histogram, in microseconds; the last bucket has none. */
extern const uint32_t metrics_bucket_us[METRICS_BUCKETS - 1];

struct metrics_latency {
    uint64_t counts[METRICS_BUCKETS]; /* each observation in one of them */
    uint64_t sum_ns;
};

struct metrics {
    struct metrics_latency requests[METRICS_TYPES_MAX]; /* by number of the body */
    uint64_t errors[METRICS_ERRNO_MAX]; /* replies by errno; the last one: every higher errno */
};

/* Counts a reply. @type: the request's body; @err: its errno, 0 or negative. */
void metrics_note_request(struct metrics *m, unsigned type, uint64_t ns, int err);

/* Counts a failed item of a successful reply. @err: its errno, 0 or negative. */
void metrics_note_error(struct metrics *m, int err);

/* CLOCK_MONOTONIC, for metrics_note_request(). */
uint64_t metrics_now_ns(void);
