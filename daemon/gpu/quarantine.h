/*
 * Quarantine of memory on a GPU that a dead process could write or read (DESIGN 4, CUDA pool). Its kernels
 * may outlive the process, so its reservations and holds stay as they are until
 *
 *     GONE       the pidfd reported its exit: quarantine_add()
 *     UNLISTED   a list of the device's processes, requested after that, does not name it
 *     released   the delay has passed since
 *
 * If another process got the same pid meanwhile, the quarantine also waits for that one: longer than
 * needed, never shorter.
 *
 * All slots of a process are released together, so an entry is a process; its slots are found through its
 * session. If no list is available (this machine has none, an MPS server, no answer within patience_ms, too
 * many dead processes at once), all memory that the process could access is *retired* instead: it never
 * takes a page again.
 *
 * This file calls neither mover nor pool: two callbacks of struct quarantine_owner release and retire. The
 * caller passes the time. The number of entries is at most @n_max.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct errmsg;

struct quarantine_owner { /* an entry is removed before its callback is called */
    /* Ends the session's reservations and holds; their memory may be used again. */
    void (*release)(void *ctx, uint32_t session);
    /* Ends them, too, but the memory must not be used again. @why: a sentence. */
    void (*retire)(void *ctx, uint32_t session, const char *why);
    void *ctx;
};

struct quarantined {
    uint32_t session;
    pid_t pid;
    uint64_t since_ms;    /* of its exit, or of the last list that names it */
    uint64_t unlisted_ms; /* 0: not known to be unlisted */
    bool was_gone;        /* the process was gone when the pending list was requested */
};

struct quarantine {
    struct quarantine_owner owner;
    uint64_t delay_ms, patience_ms;
    struct quarantined *entries; /* [n] */
    uint32_t n, n_max;
    bool is_pending;
};

/* Return: 0; -ENOMEM. */
int quarantine_init(struct quarantine *q, const struct quarantine_owner *owner, uint32_t n_max,
                    uint64_t delay_ms, uint64_t patience_ms, struct errmsg *e);
void quarantine_deinit(struct quarantine *q); /* calls nothing */

/* The process of @session is gone. Its memory is retired at once if there is no room for an entry. */
void quarantine_add(struct quarantine *q, uint32_t session, pid_t pid, uint64_t now_ms);

/* Whether a list of processes is needed now. The caller requests one, then calls quarantine_requested(). */
bool quarantine_needs_list(const struct quarantine *q);
void quarantine_requested(struct quarantine *q);

/*
 * The list has arrived: the processes that use the device. An entry whose process was gone before the request
 * and is not in @pids becomes UNLISTED.
 */
void quarantine_listed(struct quarantine *q, const uint32_t *pids, size_t n, uint64_t now_ms);

/* No list has arrived: quarantine_needs_list() requests another one until patience_ms have passed. */
void quarantine_unanswered(struct quarantine *q);

/* No list is possible: retires the memory of all entries. */
void quarantine_retire_all(struct quarantine *q, const char *why);

/* At each tick: releases and retires the entries that are due. */
void quarantine_tick(struct quarantine *q, uint64_t now_ms);
