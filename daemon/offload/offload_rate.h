/*
 * How fast a tier gives pages, so that a client that computes faster does not wait for them. Measured from
 * the first fetch of a burst to its last page in memory, reading and opening together, as a mean that
 * forgets.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define OFFLOAD_RATE_KEEP_NS                                                                                 \
    (UINT64_C(60) * 1000000000) /* an older rate is not believed: the tier is tried */

struct offload_rate { /* zeros at first */
    uint32_t n_running;
    uint64_t since_ns;  /* when the burst, or the part of it that is being measured, began */
    uint64_t bytes;     /* since then */
    double bytes_per_s; /* 0: not measured */
    uint64_t measured_ns;
};

void offload_rate_begin(struct offload_rate *r, uint64_t now_ns); /* a fetch */
/* Its end. @bytes: of the page; 0: it did not come. */
void offload_rate_end(struct offload_rate *r, uint64_t bytes, uint64_t now_ns);

/* 0: unknown. */
double offload_rate_now(const struct offload_rate *r, uint64_t now_ns);

/* Whether pages come at @wanted_bytes_per_s or faster, or nothing is known. */
bool offload_rate_reaches(const struct offload_rate *r, uint64_t wanted_bytes_per_s, uint64_t now_ns);
