/*
 * Gives freed heap back to the kernel. malloc() keeps what is freed below something that is still used, and
 * raises its thresholds with each large block, so that the heap of a daemon stays at its peak: after 300 MB
 * of requests that waited it had 300 MB for good (2026-11).
 *
 * Who frees much at a time notes it. A tick then trims the heap: 14 ms for 64 MiB in blocks of 100 bytes,
 * less for larger ones, so it runs at most every HEAP_TRIM_MS and only after HEAP_TRIM_BYTES were freed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { HEAP_TRIM_BYTES = 1 << 20, HEAP_TRIM_MS = 2000 };

struct heap {             /* zeros at first */
    uint64_t freed_bytes; /* since the last trim */
    uint64_t trimmed_ms;
};

/* Fixes the thresholds of malloc(), before threads exist. */
void heap_init(void);

static inline void heap_note_freed(struct heap *h, uint64_t bytes)
{
    h->freed_bytes += bytes;
}

/* Whether a later tick will trim. */
static inline bool heap_is_due(const struct heap *h)
{
    return h->freed_bytes >= HEAP_TRIM_BYTES;
}

/* At each tick. @now_ms: CLOCK_MONOTONIC. */
void heap_tick(struct heap *h, uint64_t now_ms);
