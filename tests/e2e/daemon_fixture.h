/*
 * A real kvcobrad for a test: private folder, private sockets, log kept, ended and checked at the end.
 *
 *     struct daemon d;
 *     assert(daemon_start(&d, DAEMON_BY_PATH, (const char *const[]) { "--pool-bytes=8M", NULL }));
 *     ... d.socket, d.operator_socket ...
 *     CU_ASSERT(daemon_stop(&d));
 *
 * The program comes from the environment variable KVC_KVCOBRAD; KVC_TEST_EVENT_BACKEND, if set, is the event
 * backend it is told to use; KVC_TEST_WORK_INLINE, its --work-inline-bytes. Readiness is an event
 * (--ready-fd), not a delay.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum daemon_flags {
    DAEMON_BY_PATH = 0,    /* the daemon makes the sockets */
    DAEMON_BY_FD = 1,      /* made here, passed by --listen-fd and --operator-fd */
    DAEMON_WITH_STATE = 2, /* --state-dir in the private folder */
};

struct daemon {
    pid_t pid;
    char folder[64];
    char socket[96], operator_socket[96], state[96], log[96];
    unsigned flags;
};

/* @args: NULL-terminated further options, or NULL. False, with the reason on standard error, if it does not
 * serve. */
bool daemon_start(struct daemon *d, unsigned flags, const char *const *args);

/* Once more in the same folder, after daemon_end() or daemon_kill(). */
bool daemon_start_again(struct daemon *d, const char *const *args);

/* SIGTERM, exit status 0, nothing left of sockets and locks; the folder stays. */
bool daemon_end(struct daemon *d);
void daemon_kill(struct daemon *d); /* SIGKILL, reaped */

/* daemon_end() and removal of the folder. */
bool daemon_stop(struct daemon *d);
void daemon_remove_folder(struct daemon *d);

/* Whether the log so far has a line with @text. */
bool daemon_logged(const struct daemon *d, const char *text);

/* Runs kvcobrad with @args until it exits by itself. Return: its exit status; -1 if it was killed. */
int daemon_run(const char *const *args, const char *log);
