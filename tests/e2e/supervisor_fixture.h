/*
 * The supervisor of lab/bench/fd_store.h for tests: the daemon may be killed at any instruction; the
 * sockets and the store outlive it. It fills in raw_daemon, so raw_service_fixture.h works.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * Starts the daemon with a persistent pool and a state folder; asserts. @args: further options up to
 * a NULL, or NULL.
 */
void supervisor_begin(const char *const *args);
/* supervisor_begin() without the start of the daemon. */
void supervisor_prepare(const char *const *args);

/*
 * Kills (SIGKILL) or ends (SIGTERM) the daemon. On return, the store has handled everything
 * that the daemon sent.
 */
void supervisor_kill(void);
void supervisor_end(void);

/* Starts the daemon again with the stored descriptors. False: the daemon did not get ready. */
bool supervisor_again(void);
/* The same for a start that may fail. @ret_status: of waitpid(); -1: the daemon ran and did not get ready. */
bool supervisor_try(int *ret_status);

/* Ends the daemon if it runs, empties the store, and removes the folder. */
void supervisor_finish(void);

/* The same for a daemon that has ended, without the folder's removal if the test wants to keep its log. */
void supervisor_close(bool remove_folder);

/* Waits for the next WATCHDOG=1; WATCHDOG_USEC is 300 ms. False: none came. */
bool supervisor_hears_watchdog(void);

/* Descriptors stored under names that begin with @prefix; the first of them (borrowed), or -1. */
size_t supervisor_stored(const char *prefix);
bool supervisor_gets(const char *prefix); /* waits for one; false: none came */
int supervisor_stored_fd(const char *prefix);

/* Removes the descriptors from the store whose names begin with @prefix. */
void supervisor_lose(const char *prefix);
