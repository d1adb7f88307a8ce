/*
 * The threads that long calls run on: those of the caller (kvc_client_set_executor()) or the library's own
 * (kvc_client_set_threads()). And the memory that attention needs on each of them, kept between calls so that
 * a decode step allocates nothing.
 */
#pragma once

#include <stddef.h>

#include "client/kvcobra.h"

#define WORKERS_MAX 256

struct threads;

struct workers {
    kvc_executor executor;   /* run NULL: none of the caller */
    struct threads *threads; /* of the library; NULL: none. At most one of the two is set */
    unsigned n;              /* at least 1 */
    void *scratch;           /* [n][scratch_bytes], each aligned to 64 */
    size_t scratch_bytes;
    void *items; /* pieces of work of the running call */
    size_t items_bytes;
    float *partials;   /* partial results */
    size_t n_partials; /* floats */
};

void workers_init(struct workers *w);
void workers_deinit(struct workers *w); /* ends the library's threads */

/* Room for a call's scratch per worker, items and partial results; contents are lost. Return: 0; -ENOMEM. */
int workers_reserve(struct workers *w, size_t scratch_bytes, size_t items_bytes, size_t n_partials);

static inline void *workers_scratch(const struct workers *w, unsigned worker)
{
    return (char *) w->scratch + worker * w->scratch_bytes;
}

/* Runs @task(@arg, i, worker) for every i below @n. */
void workers_run(const struct workers *w, void (*task)(void *arg, size_t i, unsigned worker), void *arg,
                 size_t n);
