/*
 * Extents of a GPU that were made ahead, since the event loop never waits for the mover: a short queue of
 * descriptors, filled one at a time, of nobody until a pool takes one. Who makes them is behind struct
 * preallocated_maker.
 *
 * Spares count with the extents that the pool has: together they never exceed what the pool may have. When
 * making one fails, the next try waits longer each time; what failed stays the answer until one succeeds.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/config/limits.h"

enum {
    PREALLOCATED_PAUSE_MS_MIN = 100, /* after the first failure; doubles */
    PREALLOCATED_PAUSE_MS_MAX = 10000,
};

struct preallocated_maker {
    /* Begins to make one: then preallocated_add() or preallocated_fail() is called once, later. Return: 0;
     * errno: not now. */
    int (*begin)(void *ctx, struct errmsg *e);
    void *ctx;
};

struct preallocated {
    struct preallocated_maker maker;
    uint32_t n_wanted; /* ahead of need; 0: only when somebody found none */
    uint32_t n;
    int fds[PREALLOCATED_MAX]; /* [n] oldest first */
    bool is_being_made;
    bool is_needed; /* somebody found none since the last one was taken */
    int err;        /* of the last try; 0: it succeeded, or there was none yet */
    struct errmsg why;
    uint64_t pause_ms, try_ms; /* no try before this */
    uint64_t n_made, n_failed;
};

/* @n_wanted: at most PREALLOCATED_MAX. @maker: copied; its context outlives the queue. */
void preallocated_init(struct preallocated *s, const struct preallocated_maker *maker, uint32_t n_wanted);
void preallocated_deinit(
    struct preallocated *s); /* closes them; nothing is being made, or the maker forgot */

/**
 * preallocated_take() - the memory of an extent
 * @room: extents that the pool may still add
 * @ret_fd: the caller's
 *
 * Asks for another one, whether there was one or not. Return: 0; -EAGAIN: one is being made, or could not be
 * made and will be tried again; -ENOMEM: the device has no memory left, which is tried again too.
 */
int preallocated_take(struct preallocated *s, uint32_t room, uint64_t now_ms, int *ret_fd, struct errmsg *e);

/* Once in a while: asks for one if fewer are there than wanted, @room allows it, and no pause is on. Closes
 * what there is no room for. */
void preallocated_tick(struct preallocated *s, uint32_t room, uint64_t now_ms);

/* What begin() led to. @fd: transferred. */
void preallocated_add(struct preallocated *s, int fd);
void preallocated_fail(struct preallocated *s, int err, const char *why, uint64_t now_ms);
