/*
 * Worker threads: one job at a time, cut into items, which free threads take. The library uses them for
 * attention, the engine for matrix products.
 *
 * Workers block all signals. They poll for the next job for about ten microseconds, the time between two
 * matrix products of a decode step, and then sleep. The caller does not wait for a worker that wakes too late
 * to take an item. A child process after fork() has none of the threads and must not use or free the handle.
 */
#pragma once

#include <stddef.h>

#define THREADS_MAX 256

struct errmsg;
struct threads;

/* @worker: 0 .. threads_count() - 1, for scratch that threads must not share. */
typedef void (*threads_item)(void *ctx, size_t item, unsigned worker);

/* The processors that the process may use (sched_setaffinity(), taskset), 1..256. */
unsigned threads_available(void);

/* @n: 1..256 threads, with the caller's; 0: threads_available().
 * Return: 0; -EINVAL: @n is above 256; -ENOMEM, -EAGAIN: a thread could not be started, and none runs. */
int threads_new(unsigned n, struct threads **ret_threads, struct errmsg *e);
struct threads *threads_free(struct threads *t);
static inline void threads_freep(struct threads **t)
{
    *t = threads_free(*t);
}
unsigned threads_count(const struct threads *t); /* 1 for NULL */

/* Runs items 0 .. @n_items - 1 and returns when all are done. @t NULL: on the caller's thread. One caller at
 * a time. */
void threads_run(struct threads *t, threads_item run, void *ctx, size_t n_items);
