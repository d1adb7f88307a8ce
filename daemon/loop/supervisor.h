/*
 * Who started us, and the store of descriptors it keeps for us while we are not there (sd_notify(3),
 * FDSTORE). systemd keeps it over `systemctl restart` and over a crash; `stop` followed by `start` empties it
 * on systemd 252.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;

enum supervisor_keep { KEEP_AUTO = 0, KEEP_YES = 1, KEEP_NO = 2 };

struct supervisor_fd {
    char *name; /* FDNAME; owned */
    int fd;     /* -1 once somebody took it */
};

struct supervisor {
    bool keeps;                /* descriptors that are stored come back */
    bool failed;               /* one could not be stored: what belongs to it is lost at the next start */
    bool frozen;               /* we are leaving: nothing is removed any more */
    struct supervisor_fd *fds; /* [n_fds] what we were started with, sockets too */
    size_t n_fds;
};

/* Takes the descriptors that were passed. KEEP_AUTO: if the supervisor says that it has a store ($FDSTORE).
 */
void supervisor_init(struct supervisor *s, enum supervisor_keep keep);
void supervisor_deinit(struct supervisor *s); /* closes what nobody took */

/* The descriptor of this name, now the caller's; -1 if there is none. */
int supervisor_take(struct supervisor *s, const char *name);

/* Stores a copy. It is safe after supervisor_barrier(); failures are logged and remembered. */
void supervisor_store(struct supervisor *s, const char *name, int fd);
void supervisor_remove(struct supervisor *s, const char *name);
void supervisor_barrier(struct supervisor *s); /* waits until the supervisor has seen all that was sent */

/* READY=1, RELOADING=1, STOPPING=1, WATCHDOG=1, STATUS=...; ignored if nobody listens. */
void supervisor_notify(const char *state);

/* How often it wants to hear WATCHDOG=1, in ms; 0: never. */
unsigned supervisor_watchdog_ms(void);
