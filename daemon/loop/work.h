/*
 * Threads for work that would block the event loop: copying, checksums, parsing, syncing files.
 *
 * The loop submits an item with work_submit() and gets it back through done(), which runs on the loop. In
 * between, the item and everything that it points to belong to the threads. Items wait in one queue. A long
 * item runs one slice at a time and returns to the end of the queue in between. So a short item behind it
 * waits for one slice, not for the whole item.
 *
 * A full queue refuses items. An item whose deadline passed while it waited is returned without being run.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct ev;
struct work;

#define WORK_SLICE_BYTES (UINT64_C(4) << 20) /* of copying: about a millisecond */

struct work_item { /* embedded; belongs to the caller before work_submit() and from done() on */
    struct work_item *next;
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

/* Return: 0; -EAGAIN: too many items, @i was not submitted. */
int work_submit(struct work *w, struct work_item *i);

/* At each tick: returns waiting items whose deadline passed. */
void work_expire(struct work *w, uint64_t now_ms);

void work_metrics(struct work *w, struct work_metrics *ret);

/* CLOCK_MONOTONIC in milliseconds, for threads: ev_now_ms() stands still during a pass of the loop. */
uint64_t work_clock_ms(void);
