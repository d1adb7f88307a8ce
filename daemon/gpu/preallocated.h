/*
 * Preallocated extents of a GPU. The event loop never waits for the mover, so a short queue of descriptors
 * is filled in advance, one at a time; they belong to no tenant until a pool takes one. struct
 * preallocated_maker hides who creates them.
 *
 * They count with the extents of the pool: together they never exceed what the pool may have. When creating
 * one fails, the next try waits longer each time, and its error is the answer until one succeeds.
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
    /*
     * Begins to create one: preallocated_add() or preallocated_fail() is called once, later. Return: 0;
     * errno: not now.
     */
    int (*begin)(void *ctx, struct errmsg *e);
    void *ctx;
};

struct preallocated {
    struct preallocated_maker maker;
    uint32_t n_wanted; /* in advance; 0: only after preallocated_take() found none */
    uint32_t n;
    int fds[PREALLOCATED_MAX]; /* [n] oldest first */
    bool is_being_created;
    bool is_needed; /* preallocated_take() found none since the last one was taken */
    int err;        /* of the last try; 0: it succeeded, or there was none yet */
    struct errmsg why;
    uint64_t pause_ms, try_ms; /* no try before try_ms */
    uint64_t n_made, n_failed;
};

/* @n_wanted: at most PREALLOCATED_MAX. @maker: copied; its context outlives the queue. */
void preallocated_init(struct preallocated *s, const struct preallocated_maker *maker, uint32_t n_wanted);
/* closes them; none is being created, or its callback was cancelled */
void preallocated_deinit(struct preallocated *s);

/**
 * preallocated_take() - the memory of an extent
 * @room:   extents that the pool may still add
 * @ret_fd: the caller's
 *
 * Also begins to create another one. Return: 0; -EAGAIN: one is being created, or creating one failed and
 * will be tried again; -ENOMEM: the device has no memory left, which is tried again too.
 */
int preallocated_take(struct preallocated *s, uint32_t room, uint64_t now_ms, int *ret_fd, struct errmsg *e);

/*
 * At each tick: begins to create one if fewer exist than wanted, @room allows it, and no pause is on.
 * Closes those that @room does not allow.
 */
void preallocated_tick(struct preallocated *s, uint32_t room, uint64_t now_ms);

/* The results of begin(). @fd: transferred. */
void preallocated_add(struct preallocated *s, int fd);
void preallocated_fail(struct preallocated *s, int err, const char *why, uint64_t now_ms);
