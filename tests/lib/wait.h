/*
 * Waits for another process by repeating a request:
 *
 *     for (struct wait w = wait_begin(); r == -EAGAIN && wait_again(&w);)
 *         r = request();
 *
 * A test never sleeps for a fixed time: a busy machine breaks every guess.
 * The limit only ends a test whose event never happens, so it is far above the time that a busy machine
 * needs; check the result after the loop.
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <time.h>

enum { WAIT_LIMIT_S = 60 };

struct wait {
    time_t end_s; /* CLOCK_MONOTONIC */
};

static inline struct wait wait_begin(void)
{
    struct timespec now;

    (void) clock_gettime(CLOCK_MONOTONIC, &now);
    return (struct wait){now.tv_sec + WAIT_LIMIT_S};
}

/* Pauses for a millisecond. False if the limit is over. */
static inline bool wait_again(const struct wait *w)
{
    struct timespec now;

    (void) poll(NULL, 0, 1);
    (void) clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec < w->end_s;
}
