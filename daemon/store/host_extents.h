/*
 * New extents of the host's pool. A thread makes them (extent_maker.h), setting spare-extents of them in
 * advance. If a tenant needs one while none is ready, its request waits: see extent_wait.h.
 */
#pragma once

#include "daemon/store/pool_types.h"
#include "daemon/store/preallocated.h"

struct ev;
struct host_memory;

struct host_extents_owner {
    void (*changed)(
        void *ctx); /* on the loop: an extent is ready, or could not be made; requests may try again */
    void *ctx;
};

struct host_extents {
    struct ev *ev;
    struct host_memory *memory;
    struct pool *pool;
    struct pool_source source;
    struct preallocated preallocated;
    struct host_extents_owner owner;
};

/* @p: the host's pool; sets its source. @n_spare: at most PREALLOCATED_MAX. */
void host_extents_init(struct host_extents *h, struct ev *ev, struct host_memory *memory, struct pool *p,
                       uint32_t n_spare, const struct host_extents_owner *owner);

/* host_memory_deinit() was called: no extent is being made. */
void host_extents_deinit(struct host_extents *h);

/* At the start, when the pool of an earlier process is restored, and at each tick. */
void host_extents_tick(struct host_extents *h);
