/*
 * When memory on a GPU that a dead process could write or read is used again (DESIGN 4, CUDA pool). Its
 * kernels may go on after the process: its reservations and holds stay as they are until
 *
 *     GONE       the pidfd reported its exit: quarantine_add()
 *     UNLISTED   a list of the device's processes, asked for after that, does not name it
 *     released   the delay has passed since
 *
 * A number that another process got meanwhile makes it wait for that one too: longer than needed, never
 * shorter.
 *
 * All slots of a process share its fate, so an entry is a process; what it has is found through its session.
 * If that cannot be known (no list of processes on this machine, an MPS server, no answer within the
 * patience, too many dead processes at once), everything the process could touch is *retired* instead:
 * nothing is put there ever again.
 *
 * Knows neither mover nor pool: two calls say what to do. Time is the caller's. Bounded: @n_max entries.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct errmsg;

struct quarantine_owner {
    /* The session's reservations and holds end, their memory may be used. The entry is gone when it is
     * called. */
    void (*release)(void *ctx, uint32_t session);
    /* The same, but the memory may not: @why is a sentence. */
    void (*retire)(void *ctx, uint32_t session, const char *why);
    void *ctx;
};

struct quarantined {
    uint32_t session;
    pid_t pid;
    uint64_t since_ms;    /* of its exit, or of the last list that names it */
    uint64_t unlisted_ms; /* 0: not known to be unlisted */
    bool is_asked;        /* it was gone when the list that is being waited for was asked for */
};

struct quarantine {
    struct quarantine_owner owner;
    uint64_t delay_ms, patience_ms;
    struct quarantined *entries; /* [n] */
    uint32_t n, n_max;
    bool is_asking;
};

/* Return: 0; -ENOMEM. */
int quarantine_init(struct quarantine *q, const struct quarantine_owner *owner, uint32_t n_max,
                    uint64_t delay_ms, uint64_t patience_ms, struct errmsg *e);
void quarantine_deinit(struct quarantine *q); /* forgets: nothing is called */

/* The process of @session is gone. The session retires at once if there is no room. */
void quarantine_add(struct quarantine *q, uint32_t session, pid_t pid, uint64_t now_ms);

/* Whether a list of processes would help now. quarantine_asked() follows if one was asked for. */
bool quarantine_wants_list(const struct quarantine *q);
void quarantine_asked(struct quarantine *q);

/* The answer: processes that use the device. Those that were gone before it was asked for and are not in it
 * are UNLISTED. */
void quarantine_listed(struct quarantine *q, const uint32_t *pids, size_t n, uint64_t now_ms);

/* There was no answer. It is asked again, while the patience lasts. */
void quarantine_unanswered(struct quarantine *q);

/* There is none that could be believed: everything retires. */
void quarantine_retire_all(struct quarantine *q, const char *why);

/* Once in a while: what is due. */
void quarantine_tick(struct quarantine *q, uint64_t now_ms);
