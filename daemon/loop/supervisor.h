/*
 * The supervisor that started the daemon, and its store of descriptors, which outlives the process
 * (sd_notify(3), FDSTORE). systemd keeps it over `systemctl restart` and over a crash; `stop` followed by
 * `start` empties it on systemd 252.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;

enum supervisor_keep { KEEP_AUTO = 0, KEEP_YES = 1, KEEP_NO = 2 };

struct supervisor_fd {
    char *name; /* FDNAME; owned */
    int fd;     /* -1 after supervisor_take() */
};

struct supervisor {
    bool keeps;  /* stored descriptors are passed to the next process */
    bool failed; /* a descriptor was not stored: its part of the pool is lost at the next start */
    bool frozen; /* the daemon stops: nothing is removed */
    struct supervisor_fd *fds; /* [n_fds] passed at the start, sockets too */
    size_t n_fds;
};

/* Takes the passed descriptors. @keep: KEEP_AUTO: yes if $FDSTORE says that the supervisor has a store. */
void supervisor_init(struct supervisor *s, enum supervisor_keep keep);
void supervisor_deinit(struct supervisor *s); /* closes the descriptors that were not taken */

/* The descriptor of this name, which the caller owns from now on; -1: none. */
int supervisor_take(struct supervisor *s, const char *name);

/* Stores a copy of @fd; it is stored for certain after supervisor_barrier(). Logs and records failures. */
void supervisor_store(struct supervisor *s, const char *name, int fd);
void supervisor_remove(struct supervisor *s, const char *name);
void supervisor_barrier(struct supervisor *s); /* waits until the supervisor has processed all messages */

/* Sends READY=1, RELOADING=1, STOPPING=1, WATCHDOG=1 or STATUS=...; without a supervisor it does nothing. */
void supervisor_notify(const char *state);

/* How often the supervisor expects WATCHDOG=1, in ms; 0: never. */
unsigned supervisor_watchdog_ms(void);
