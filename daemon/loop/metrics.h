/*
 * What the daemon counts for monitoring: requests by type, how long they took, errors by errno. Everything
 * else that is shown (metrics_collect.c) is read from where it is kept anyway.
 */
#pragma once

#include <stdint.h>

#define METRICS_TYPES_MAX 64 /* numbers of the schema's bodies; 0: requests it does not have */
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
    uint64_t errors[METRICS_ERRNO_MAX];                 /* replies by errno; the last one: everything above */
};

/* One reply left (or failed to): @type is the request's body, @err its errno, 0 or negative. */
void metrics_note_request(struct metrics *m, unsigned type, uint64_t ns, int err);

/* An item of a reply that went well otherwise: @err its errno, 0 or negative. */
void metrics_note_error(struct metrics *m, int err);

/* CLOCK_MONOTONIC, for what metrics_note_request() wants. */
uint64_t metrics_now_ns(void);
