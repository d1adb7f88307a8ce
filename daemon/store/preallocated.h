/*
 * Preallocated extents of a pool. The event loop never waits for a thread or for the mover, so a short queue
 * of extents is filled in advance, one at a time. They belong to no tenant until a pool takes one. The
 * callback in struct preallocated_maker creates them.
 *
 * Preallocated extents and those of the pool together never exceed the pool's maximum. Each time a creation
 * fails, the pause before the next try doubles. preallocated_take() returns the error until one succeeds.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/config/limits.h"
#include "daemon/store/pool_types.h"

enum {
    PREALLOCATED_PAUSE_MS_MIN = 100, /* after the first failure; doubles */
    PREALLOCATED_PAUSE_MS_MAX = 10000,
};

struct preallocated_maker {
    /*
     * Begins to create an extent; preallocated_add() or preallocated_fail() is called once, later.
     * Return: 0; errno with a sentence: a failure, as reported by preallocated_fail().
     */
    int (*begin)(void *ctx, struct errmsg *e);
    void *ctx;
};

struct preallocated {
    struct preallocated_maker maker;
    uint32_t n_wanted; /* in advance; 0: only after preallocated_take() found none */
    uint32_t n;
    struct pool_memory extents[PREALLOCATED_MAX]; /* [n] oldest first */
    bool is_being_created;
    bool is_needed; /* preallocated_take() found none since the last one was taken */
    int err;        /* of the last try; 0: it succeeded, or there was none yet */
    struct errmsg why;
    uint64_t pause_ms, try_ms; /* no try before try_ms */
    uint64_t n_made, n_failed;
};

/* @n_wanted: at most PREALLOCATED_MAX. @maker: copied; its context outlives the queue. */
void preallocated_init(struct preallocated *s, const struct preallocated_maker *maker, uint32_t n_wanted);

/* Frees the extents. None is being created, or the callback was cancelled. */
void preallocated_deinit(struct preallocated *s);

/**
 * preallocated_take() - the memory of an extent
 * @room: extents that the pool may still add
 * @ret:  the caller's
 *
 * Also begins to create another extent. Return: 0; -EINPROGRESS: an extent is being created; -EAGAIN: the
 * last creation failed and will be tried again; -ENOMEM: the device has no memory left, and creation will be
 * tried again.
 */
int preallocated_take(struct preallocated *s, uint32_t room, uint64_t now_ms, struct pool_memory *ret,
                      struct errmsg *e);

/*
 * At each tick: begins to create an extent if fewer exist than wanted, @room allows one, and no pause runs.
 * Drops the extents that @room does not allow.
 */
void preallocated_tick(struct preallocated *s, uint32_t room, uint64_t now_ms);

/* The results of begin(). @m: transferred. */
void preallocated_add(struct preallocated *s, const struct pool_memory *m);
void preallocated_fail(struct preallocated *s, int err, const char *why, uint64_t now_ms);
