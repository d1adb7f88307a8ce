/*
 * When to try again what failed: the wait doubles from 100 ms to 10 s, and a random half of it keeps the
 * clients of a daemon that comes back from arriving together. Nobody sleeps: callers ask whether the time has
 * come.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BACKOFF_FIRST_MS 100
#define BACKOFF_LONGEST_MS 10000

struct backoff { /* zeros: never failed */
    uint32_t n_failed;
    int64_t next_ms;
};

/* Monotonic milliseconds; no system call where the kernel has a vDSO. */
int64_t clock_ms(void);

/* The wait after @n_failed >= 1 failures in a row: between half of BACKOFF_FIRST_MS << (n_failed - 1) and all
 * of it. */
int64_t backoff_wait_ms(uint32_t n_failed, uint32_t random);

void backoff_failed(struct backoff *b, int64_t now_ms);

static inline bool backoff_is_over(const struct backoff *b, int64_t now_ms)
{
    return now_ms >= b->next_ms;
}
