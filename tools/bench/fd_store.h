/*
 * A supervisor with a descriptor store: what systemd does for a service with FileDescriptorStoreMax=, a
 * socket unit and Type=notify, and no more. `kvcobra bench service` restarts a daemon under it, and so do the
 * tests of restarts.
 *
 * A thread of its own answers the notification socket, so the daemon may be killed at any instruction. The
 * sockets and the store stay over the deaths of the daemon. Starting, waiting and ending are one thread's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct errmsg;
struct fd_store;

/**
 * fd_store_new() - make the sockets and an empty store
 * @folder: existing; kvcobra.sock, operator.sock and notify.sock are made in it, and taken away by
 * fd_store_free()
 *
 * Return: 0; a negative errno with a sentence.
 */
int fd_store_new(const char *folder, struct fd_store **ret, struct errmsg *e);
struct fd_store *
fd_store_free(struct fd_store *s); /* the daemon has ended; closes what is stored. NULL is fine */
static inline void fd_store_freep(struct fd_store **s)
{
    *s = fd_store_free(*s);
}

/**
 * fd_store_start() - run a daemon with what is stored
 * @argv:    ends with NULL
 * @log_fd:  its standard error; -1: ours
 * @ret_pid: the caller's to wait for
 *
 * It dies with this thread. WATCHDOG_USEC is 300 ms. Return: 0, before the daemon is ready; a negative errno
 * with a sentence.
 */
int fd_store_start(struct fd_store *s, const char *path, const char *const *argv, int log_fd, pid_t *ret_pid,
                   struct errmsg *e);

/* READY=1 of the daemon that was started last; WATCHDOG=1, the next one. False: it did not come within 20 s.
 */
bool fd_store_wait_ready(struct fd_store *s);
bool fd_store_wait_watchdog(struct fd_store *s);

/* The daemon is gone: everything that it sent is handled when this returns. False: not within 20 s. */
bool fd_store_settle(struct fd_store *s);

/* Descriptors under names that begin with @prefix: how many, and the first of them (borrowed, or -1). */
size_t fd_store_count(struct fd_store *s, const char *prefix);
int fd_store_first(struct fd_store *s, const char *prefix);

/* The store loses what begins with @prefix. */
void fd_store_lose(struct fd_store *s, const char *prefix);
