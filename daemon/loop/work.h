/*
 * A few threads for what would hold the event loop up: copying, checksums, parsing, syncing files.
 *
 * The loop hands an item over with work_submit() and gets it back through done(), which runs on the loop; in
 * between the item and everything that it points at belong to the threads. Items wait in one line. A long one
 * does a slice at a time and goes to the end of the line in between, so that a small one behind it waits for
 * slices, not for the whole.
 *
 * Bounded: a full line refuses, and an item whose deadline passed while it waited comes back undone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct ev;
struct work;

#define WORK_SLICE_BYTES (UINT64_C(4) << 20) /* of copying: about a millisecond */

struct work_item { /* embedded; the caller's until submitted and from done() on */
    struct work_item *next;
    bool (*run)(struct work_item *i);  /* on a thread, one slice. Return: whether more is to be done */
    void (*done)(struct work_item *i); /* on the loop; may free the item */
    uint64_t deadline_ms;              /* CLOCK_MONOTONIC */
    bool expired;                      /* the deadline passed, or the end came, before run() was through */
};

struct work_metrics {
    uint32_t n_threads, n_waiting; /* waiting: submitted, no thread on it */
    uint64_t n_done, n_refused, n_expired;
};

/* @n_items_max: submitted and not yet done. Return: 0; errno of a thread or of the loop. */
int work_new(struct ev *ev, uint32_t n_threads, uint32_t n_items_max, struct work **ret, struct errmsg *e);

/* Waits for running slices; every item that is left comes back expired. NULL is fine. */
struct work *work_free(struct work *w);

/* Return: 0; -EAGAIN: too many items, nothing was submitted. */
int work_submit(struct work *w, struct work_item *i);

/* Once in a while, from the loop: waiting items whose deadline passed come back. */
void work_expire(struct work *w, uint64_t now_ms);

void work_metrics(struct work *w, struct work_metrics *ret);

/* CLOCK_MONOTONIC in milliseconds: the loop's clock stands still between its turns, threads have none. */
uint64_t work_clock_ms(void);
