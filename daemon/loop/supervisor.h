/*
 * The supervisor that started the daemon, and its store of descriptors, which outlives the process
 * (sd_notify(3), FDSTORE). systemd keeps it over `systemctl restart` and over a crash; `stop` followed by
 * `start` empties it on systemd 252.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct notify;

enum supervisor_keep { KEEP_AUTO = 0, KEEP_YES = 1, KEEP_NO = 2 };

struct supervisor_fd {
    char *name; /* FDNAME; owned */
    int fd;     /* -1 after supervisor_take() */
};

struct supervisor {
    unsigned long store_max;   /* descriptors that the store takes ($FDSTORE, systemd 254); 0: unknown */
    bool keeps;                /* stored descriptors are passed to the next process */
    bool failed;               /* set by the caller: a part of the pool cannot be stored */
    bool frozen;               /* the daemon stops: nothing is removed */
    struct notify *notify;     /* NULL: there is no supervisor */
    struct supervisor_fd *fds; /* [n_fds] passed at the start, sockets too */
    size_t n_fds;
};

/*
 * Takes the passed descriptors. @keep: KEEP_AUTO: yes if $FDSTORE says that the supervisor has a store.
 * Return: 0; errno with a sentence: the start must fail and leave the store as it is.
 */
int supervisor_init(struct supervisor *s, enum supervisor_keep keep, struct errmsg *e);
/* Sends what is queued, for 5 s at most, and closes the descriptors that were not taken. */
void supervisor_deinit(struct supervisor *s);

/* The descriptor of this name, which the caller owns from now on; -1: none. */
int supervisor_take(struct supervisor *s, const char *name);

/*
 * Stores a copy of @fd. A thread sends the message (notify.h), so no call but supervisor_barrier() waits.
 * The copy is stored for certain after supervisor_barrier(). Failures are logged and recorded. Any thread
 * may call these.
 */
void supervisor_store(struct supervisor *s, const char *name, int fd);
/* The same, a second later unless it is removed by then. For pidfds, which the daemon can do without. */
void supervisor_store_soon(struct supervisor *s, const char *name, int fd);

/*
 * Stores @fd, a memory object of the daemon, so that supervisor_has() can tell whether it is in the store: a
 * full store closes what it gets, and the sender gets no error. Return: 0; errno.
 */
int supervisor_store_provably(struct supervisor *s, const char *name, int fd);

/* After supervisor_barrier(): false if the store lacks what supervisor_store_provably() sent as @fd. */
bool supervisor_has(const struct supervisor *s, int fd);

void supervisor_remove(struct supervisor *s, const char *name);
/* Waits until the supervisor has processed all messages, for 5 s at most. */
void supervisor_barrier(struct supervisor *s);

/* Whether a descriptor was not stored: its part of the pool is lost at the next start. */
bool supervisor_has_failed(const struct supervisor *s);

/* The daemon stops: nothing is stored or removed from now on. Sends what is queued, for 5 s at most. */
void supervisor_freeze(struct supervisor *s);

/*
 * Stores copies of @fds, [n] memory objects of the daemon, and waits until the supervisor has them. For other
 * threads than the loop's. Return: 0; -ENOSPC: the store is full; errno.
 */
int supervisor_store_and_wait(struct supervisor *s, const struct supervisor_fd *fds, size_t n);

/* Sends READY=1, RELOADING=1, STOPPING=1, WATCHDOG=1 or STATUS=...; without a supervisor it does nothing. */
void supervisor_notify(struct supervisor *s, const char *state);

/* How often the supervisor expects WATCHDOG=1, in ms; 0: never. */
unsigned supervisor_watchdog_ms(void);
