/*
 * A thread that gives memory of the host back. The last close of a memory object frees its pages, which takes
 * 10 ms for 64 MiB: the event loop hands such objects over instead.
 *
 * The thread is not one of work.h's pool for requests: no request delays it, and no queue refuses an object.
 * Objects that wait are counted by those that gave them (see struct account), so their number is bounded.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop/work.h"

struct errmsg;
struct ev;
struct extent;

struct host_memory {
    struct work *work;
    /* two turns of one thread: an extent that a request waits for is made although many objects wait */
    struct work_share freeing, making; /* making: extent_maker.h */
};

/* Return: 0; errno of a thread or of the loop. */
int host_memory_init(struct host_memory *m, struct ev *ev, struct errmsg *e);

/* Frees what still waits. */
void host_memory_deinit(struct host_memory *m);

struct host_memory_owner {
    void (*freed)(void *ctx, uint64_t bytes); /* on the loop, once, maybe before host_memory_free() returns */
    void *ctx;
};

/**
 * host_memory_free() - free a memory object on the thread
 * @x:       transferred; NULL is allowed and does nothing
 * @discard: frees the pages also if a client keeps the object: its bytes become zeros
 * @owner:   NULL: no callback
 */
void host_memory_free(struct host_memory *m, struct extent *x, bool discard,
                      const struct host_memory_owner *owner);
