/*
 * A whole kvcobrad in this process without sockets, threads, clock and supervisor. daemon_rig.c and
 * daemon_rig_supervisor.c take the places of ev.c, work.c, listen.c and supervisor.c, so that a test decides
 * which packet arrives, how much time passes, when a thread works, which process exits, and what the next
 * start finds.
 *
 *     struct server *s = rig_start(&config);
 *     struct rig_link *l = rig_connect(s, uid, pid, false);
 *     rig_send(l, &request);
 *     while (rig_take_reply(&reply)) ...
 *     rig_stop(s);
 *
 * Limits of the kernel are not simulated. Everything else is the code that ships.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/wire.h"

struct config;
struct errmsg;
struct ev_source;
struct server;

enum { RIG_FDS_MAX = WIRE_FDS_MAX };

struct rig_link { /* a connection, as the client has it */
    struct ev_source *stream;
    pid_t pid;
    uid_t uid;
    bool closed; /* by the daemon */
};

struct rig_reply {
    struct rig_link *link;
    Kvcobra__Reply *message;
    int fds[RIG_FDS_MAX];
    size_t n_fds;
};

/* Ends the program if a rule is broken. */
#define rig_check(ok) ((ok) ? (void) 0 : rig_broken(#ok, __FILE__, __LINE__))
__attribute__((noreturn)) void rig_broken(const char *rule, const char *file, int line);

/* Starts a daemon. @keep: later starts find what this one stores. NULL, with a sentence, if it fails. */
struct server *rig_try_start(struct config *c, bool keep, struct errmsg *e);
struct server *rig_start(struct config *c, bool keep); /* a start that fails ends the program */
/* Ends it as SIGTERM does. Links must not be used after it, only freed. */
void rig_stop(struct server *s);
/* Forgets what daemons have stored. */
void rig_forget(void);

struct rig_stored { /* what a daemon has given to its supervisor */
    char name[64];
    int fd;
};

/* All that is stored now. *@ret_n: how many. Borrowed until a daemon runs again. */
const struct rig_stored *rig_stored(size_t *ret_n);
/* Stores an object, as an earlier daemon may have done. @fd: the caller's. */
void rig_store(const char *name, int fd);

/* A process that does nothing; the same for the same number. */
pid_t rig_process(unsigned number);

/* Connects. The link is closed if the daemon refuses the connection. */
struct rig_link *rig_connect(struct server *s, uid_t uid, pid_t pid, bool is_operator);
/* The client closes the connection. */
void rig_close(struct rig_link *l);
/* Frees the memory of a link that is closed, or whose daemon ended. */
struct rig_link *rig_link_free(struct rig_link *l);

/* One packet. The daemon owns @fds. Does nothing if the link is closed. */
void rig_send(struct rig_link *l, const void *packet, size_t bytes, const int *fds, size_t n_fds);

/* The next reply that a daemon sent. False: none. The caller frees it. */
bool rig_take_reply(struct rig_reply *ret);
void rig_reply_free(struct rig_reply *r);

/* Lets a thread work on the next item of the queue for one slice. False: the queue is empty. */
bool rig_work(void);

/* Lets time pass, and ticks once if the daemon wants ticks. */
void rig_pass_time(uint64_t ms);

/* The process of a watched descriptor exits: @watch is session.exit_watch. */
void rig_wake(struct ev_source *watch);
