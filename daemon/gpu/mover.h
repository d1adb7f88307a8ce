/*
 * The daemon's link to kvcobra-mover, the process that has the GPUs' contexts (mover/README.md): requests go
 * to it over a socket pair and are answered from the event loop, which never waits. One request is with the
 * mover at a time; the rest wait here. It may die at any moment: nothing that matters is in it, and the next
 * request starts another one.
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
    int fd;              /* of CREATE; the callee may take it and set -1; else it is closed afterwards */
    const Kvcobra__MoverReply
        *body; /* set when err == 0, and then of the request's kind; lives until the callback returns */
};

/* May ask and forget; must not free the link. */
typedef void (*mover_done)(void *ctx, struct mover_reply *reply);

#define MOVER_REQUESTS_MAX 64       /* that wait, with the one under way */
#define MOVER_WAIT_FIRST_MS 100     /* between a death and the next start; doubles ... */
#define MOVER_WAIT_LONGEST_MS 10000 /* ... up to here, from where one that lived as long begins anew */

/**
 * mover_new() - a link to nobody: the mover is started by the first request
 * @path: of the executable; copied
 */
int mover_new(struct ev *ev, const char *path, struct mover **ret_mover, struct errmsg *e);

/* Ends the mover. Requests that were not answered are, with -ECANCELED. NULL is fine; returns NULL. */
struct mover *mover_free(struct mover *m);
static inline void mover_freep(struct mover **m)
{
    *m = mover_free(*m);
}

/**
 * mover_ask() - queue a request; start the mover if there is none
 * @request:    packed before this returns; its id is set here
 * @fds:        [n_fds] borrowed: copied
 * @timeout_ms: from when it is sent; a mover that takes longer is killed
 * @done:       called exactly once, after this returned 0, from the event loop, mover_free() or an answer's
 * callback
 *
 * OPEN requests that succeeded are remembered and sent to each new mover before anything else; one that fails
 * there is sent again, once a second at most, before a request for its device. What was asked for and not
 * answered when it died is answered with -ECONNRESET.
 *
 * Return: 0; -EAGAIN: MOVER_REQUESTS_MAX wait, or it died and may not be started yet; -ENOSPC: more than 16
 * devices; -EMSGSIZE, -ENOMEM; errno of starting it or of copying descriptors.
 */
int mover_ask(struct mover *m, Kvcobra__MoverRequest *request, const int *fds, size_t n_fds,
              uint64_t timeout_ms, mover_done done, void *ctx);

/* @ctx goes away: no callback with it any more; descriptors of its answers are closed. */
void mover_cancel_callbacks(struct mover *m, const void *ctx);

/* @ret_pid: 0: none is running; @ret_restarts: starts but the first */
void mover_get_info(const struct mover *m, pid_t *ret_pid, uint64_t *ret_restarts);
