/*
 * Closes sockets whose queue may hold descriptors of a client. The last close of a descriptor can wait: of a
 * TCP socket with SO_LINGER, of a file of a slow file system, of much memory. So threads do it, never the
 * loop. The event loop uses it where the kernel lacks SO_PASSRIGHTS (before Linux 6.16), and for
 * connections that are older than the daemon.
 *
 * The sockets of one uid are closed by one thread at a time, so a close that waits holds up its own uid only.
 * A thread interrupts its close every few milliseconds: waits that signals end, SO_LINGER's among them, end.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct closer;

#define CLOSER_SOCKETS_MAX 1024 /* the loop accepts no connection while so many wait */

/* Return: 0; -ENOMEM. */
int closer_new(struct closer **ret);

/*
 * Takes a socket from the loop. Without memory for it, or without any thread, the loop closes it after all.
 */
void closer_close(struct closer *c, int fd);

/* Sockets of @uid that are not closed yet, and whether CLOSER_SOCKETS_MAX wait in all. */
uint32_t closer_n_of(struct closer *c, uid_t uid);
bool closer_is_full(struct closer *c);

/*
 * Waits 200 ms at most, not for a close that hangs: the end of the process closes what is left, and then the
 * kernel does not linger. NULL is allowed; returns NULL.
 */
struct closer *closer_free(struct closer *c);
