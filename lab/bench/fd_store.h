/*
 * A supervisor with a descriptor store: the part of systemd that serves FileDescriptorStoreMax=, a socket
 * unit and Type=notify. `kvcobra-lab bench service` and the tests of restarts run a daemon under it.
 *
 * A thread serves the notification socket, so the daemon may be killed at any instruction. The sockets and
 * the store survive the daemon. All functions are for one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct errmsg;
struct fd_store;

/**
 * fd_store_new() - make the sockets and an empty store
 * @folder: existing; kvcobra.sock, operator.sock and notify.sock are created in it, and removed by
 * fd_store_free()
 *
 * Return: 0; a negative errno with a sentence.
 */
int fd_store_new(const char *folder, struct fd_store **ret, struct errmsg *e);
/* After the daemon has ended. Closes the stored descriptors. Accepts NULL. */
struct fd_store *fd_store_free(struct fd_store *s);
static inline void fd_store_freep(struct fd_store **s)
{
    *s = fd_store_free(*s);
}

/**
 * fd_store_start() - run a daemon with the stored descriptors
 * @argv:    ends with NULL
 * @log_fd:  its standard error; -1: inherited
 * @ret_pid: the caller reaps it
 *
 * The kernel kills it when this thread exits. WATCHDOG_USEC is 300 ms. Return: 0, before the daemon is ready;
 * a negative errno with a sentence.
 */
int fd_store_start(struct fd_store *s, const char *path, const char *const *argv, int log_fd, pid_t *ret_pid,
                   struct errmsg *e);

/* Waits for READY=1 of the last started daemon @pid. False: not within 20 s, or it ended. */
bool fd_store_wait_ready(struct fd_store *s, pid_t pid);
/* Waits for the next WATCHDOG=1. False: not within 20 s. */
bool fd_store_wait_watchdog(struct fd_store *s);

/* Waits until all messages of the exited daemon are handled. False: not within 20 s. */
bool fd_store_settle(struct fd_store *s);

/* Descriptors under names that begin with @prefix: their number, and the first of them (borrowed, or -1). */
size_t fd_store_count(struct fd_store *s, const char *prefix);
int fd_store_first(struct fd_store *s, const char *prefix);

/* Removes descriptors under names that begin with @prefix. */
void fd_store_lose(struct fd_store *s, const char *prefix);
