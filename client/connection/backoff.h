/*
 * When to repeat an attempt that failed. The wait doubles from 100 ms to 10 s; a random half of it keeps the
 * clients of a restarted daemon from connecting at the same moment. Nothing here sleeps: callers ask whether
 * the wait is over.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BACKOFF_FIRST_MS 100
#define BACKOFF_LONGEST_MS 10000

/* All zeros: no attempt has failed. */
struct backoff {
    uint32_t n_failed;
    int64_t next_ms;
};

/* The wait after @n_failed >= 1 failures in a row: between half of BACKOFF_FIRST_MS <<
 * (n_failed - 1) and all of it. */
int64_t backoff_wait_ms(uint32_t n_failed, uint32_t random);

/* Counts a failure; the next attempt is due after the wait. */
void backoff_failed(struct backoff *b, int64_t now_ms);

static inline bool backoff_is_over(const struct backoff *b, int64_t now_ms)
{
    return now_ms >= b->next_ms;
}
