/*
 * The daemon's link to kvcobra-mover, the process that uses the GPUs' driver (mover/README.md). Requests go
 * to it over a socket pair, and the event loop, which never waits, delivers the answers. The mover has one
 * request at a time; the others wait in a queue. The mover may die at any moment: a later mover needs none of
 * its state, and the next request starts one.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/loop/ev.h"
#include "proto/mover_wire.h"

struct mover;

struct mover_reply {
    int err;             /* the mover's; -ECONNRESET: it died or was killed; -ECANCELED: mover_free() */
    const char *message; /* a sentence when err != 0 */
    int fd;              /* of CREATE; the callback may take it and set -1; else it is closed afterwards */
    /* set when err == 0, of the request's kind; lives until the callback returns */
    const Kvcobra__MoverReply *body;
};

/* May call mover_ask(), not mover_free(). */
typedef void (*mover_done)(void *ctx, struct mover_reply *reply);

#define MOVER_REQUESTS_MAX 64       /* waiting ones and the one under way */
#define MOVER_WAIT_FIRST_MS 100     /* between a death and the next start; doubles ... */
#define MOVER_WAIT_LONGEST_MS 10000 /* ... up to this; a mover that lived that long resets the wait */

/**
 * mover_new() - a link without a process: the first request starts the mover
 * @path: of the executable; copied
 */
int mover_new(struct ev *ev, const char *path, struct mover **ret_mover, struct errmsg *e);

/* Ends the mover. Unanswered requests fail with -ECANCELED. NULL is allowed; returns NULL. */
struct mover *mover_free(struct mover *m);
static inline void mover_freep(struct mover **m)
{
    *m = mover_free(*m);
}

/**
 * mover_ask() - queue a request; start the mover if none runs
 * @request:    packed before this returns; its id is set here
 * @fds:        [n_fds] borrowed: copied
 * @timeout_ms: from when it is sent; a mover that takes longer is killed
 * @done:       called exactly once after this returned 0, by the event loop, mover_free() or another callback
 *
 * Successful OPEN requests are recorded and sent to each new mover before all others. If a new mover cannot
 * open a device, the OPEN is sent again, at most once a second, before a request for that device. When the
 * mover dies, unanswered requests fail with -ECONNRESET.
 *
 * Return: 0; -EAGAIN: MOVER_REQUESTS_MAX requests wait, or the mover died and may not be started yet;
 * -ENOSPC: more than 16 devices; -EMSGSIZE, -ENOMEM; errno of starting the mover or of copying descriptors.
 */
int mover_ask(struct mover *m, Kvcobra__MoverRequest *request, const int *fds, size_t n_fds,
              uint64_t timeout_ms, mover_done done, void *ctx);

/* @ret_pid: 0: no mover runs; @ret_restarts: starts after the first */
void mover_get_info(const struct mover *m, pid_t *ret_pid, uint64_t *ret_restarts);
