/*
 * A real kvcobrad for a test: it has a private folder with its sockets and its log, and is ended and checked.
 *
 *     struct daemon d;
 *     assert(daemon_start(&d, DAEMON_BY_PATH, (const char *const[]) { "--pool-bytes=8M", NULL }));
 *     ... d.socket, d.operator_socket ...
 *     CU_ASSERT(daemon_stop(&d));
 *
 * Environment: KVC_KVCOBRAD names the program; KVC_TEST_WORK_INLINE, if set, is its --work-inline-bytes.
 * Readiness is an event (--ready-fd), not a delay.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum daemon_flags {
    DAEMON_BY_PATH = 0,    /* the daemon makes the sockets */
    DAEMON_BY_FD = 1,      /* this fixture makes them and passes them by --listen-fd and --operator-fd */
    DAEMON_WITH_STATE = 2, /* --state-dir in the private folder */
};

struct daemon {
    pid_t pid;
    char folder[64];
    char socket[96], operator_socket[96], state[96], log[96];
    unsigned flags;
};

/*
 * @args: further options up to a NULL, or NULL. False, with the reason on standard error, if the daemon does
 * not get ready.
 */
bool daemon_start(struct daemon *d, unsigned flags, const char *const *args);

/* If set: called by each start with DAEMON_BY_FD between making the sockets and starting the daemon. */
extern void (*daemon_before_start)(const struct daemon *d);

/* Starts the daemon again in the same folder, after daemon_end() or daemon_kill(). */
bool daemon_start_again(struct daemon *d, const char *const *args);

/* SIGTERM; true if it exits with 0 and leaves no socket and no lock. The folder stays. */
bool daemon_end(struct daemon *d);
void daemon_kill(struct daemon *d); /* sends SIGKILL and waits for the exit */

/* daemon_end(), then removes the folder. */
bool daemon_stop(struct daemon *d);
void daemon_remove_folder(struct daemon *d);

/* True if the log has a line with @text. */
bool daemon_logged(const struct daemon *d, const char *text);

/* Its heap, as the kernel counts it: RssAnon. */
uint64_t daemon_heap_bytes(const struct daemon *d);

/* Runs kvcobrad with @args until it exits by itself. Return: its exit status; -1 if it was killed. */
int daemon_run(const char *const *args, const char *log);
