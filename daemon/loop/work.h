/*
 * Threads for work that would block the event loop: copying, checksums, parsing, syncing files.
 *
 * The loop submits an item with work_submit() and gets it back through done(), which runs on the loop. In
 * between, the item and everything that it points to belong to the threads. A long item runs one slice at a
 * time and returns to the end of its share in between. So a short item behind it waits for one slice, not for
 * the whole item.
 *
 * Items wait in a fair queue (fair.h): the next slice is that of the account whose slices took least time,
 * and the loop concludes ended items one at a time in the same order. Every share may have as many items as
 * places are free, so one account takes half of the places at most, and always leaves some to others.
 *
 * An item without a place is refused. An item whose deadline passed while it waited is returned without being
 * run.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop/fair.h"

struct errmsg;
struct ev;
struct work;

#define WORK_SLICE_BYTES (UINT64_C(4) << 20) /* of copying: about a millisecond */

struct work_share { /* embedded by an account; zeroed at first, and without items when it is freed */
    struct fair_share waiting, ended; /* for a thread, for the loop */
    uint32_t n_items;                 /* submitted and not done */
};

struct work_item {          /* embedded; belongs to the caller before work_submit() and from done() on */
    struct fair_item place; /* first member */
    struct work_share *share;
    struct work_item *next_late;
    bool (*run)(struct work_item *i);  /* on a thread, one slice. Return: whether there is more to do */
    void (*done)(struct work_item *i); /* on the loop; may free the item */
    uint64_t deadline_ms;              /* CLOCK_MONOTONIC */
    bool expired;                      /* the deadline passed, or the daemon stopped, before run() was done */
};

struct work_metrics {
    uint32_t n_threads, n_waiting; /* waiting: submitted, not running on a thread */
    uint64_t n_done, n_refused, n_expired;
};

/* @n_items_max: submitted and not yet done. Return: 0; errno of a thread or of the loop. */
int work_new(struct ev *ev, uint32_t n_threads, uint32_t n_items_max, struct work **ret, struct errmsg *e);

/* Waits for running slices; every other item is returned as expired. NULL is allowed; returns NULL. */
struct work *work_free(struct work *w);

/*
 * @s: borrowed until @i is done. Return: 0; -EAGAIN: @s has as many items as places are free; -ENOMEM. On
 * failure @i was not submitted.
 */
int work_submit(struct work *w, struct work_share *s, struct work_item *i);

/* At each tick: returns waiting items whose deadline passed. */
void work_expire(struct work *w, uint64_t now_ms);

void work_metrics(struct work *w, struct work_metrics *ret);

/* CLOCK_MONOTONIC in milliseconds, for threads: ev_now_ms() stands still during a pass of the loop. */
uint64_t work_clock_ms(void);
