/*
 * Messages to the service manager (sd_notify(3)), sent by a thread: a manager that does not read its socket
 * holds up this thread only, never the event loop.
 *
 * Messages are sent in the order in which they were queued. A descriptor that is removed before its message
 * was sent costs no message. So the queue has at most one message for each descriptor that the daemon wants
 * stored, one for each that the manager has and should not, and one for each kind of state.
 *
 * Any thread may call these functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct notify;

/* How messages are sent; tests replace it. Return: above 0: sent; 0: there is no manager; negative: errno. */
struct notify_send {
    int (*with_fd)(const char *state, int fd); /* @fd: -1: none */
    int (*barrier)(uint64_t timeout_us);
};

/* Return: 0; -ENOMEM or errno of the thread, with a sentence. */
int notify_new(const struct notify_send *send, struct notify **ret, struct errmsg *e);

/*
 * Sends what is queued, for 5 s at most, and ends the thread. A thread that hangs in a send is left to the
 * end of the process. NULL is allowed; returns NULL.
 */
struct notify *notify_free(struct notify *n);

/*
 * Stores a copy of @fd under @name. @delay_ms: how long the message is held back, so that a descriptor that
 * is removed soon never reaches the manager. Messages queued later do not wait for it. Failures are logged,
 * and notify_has_failed() is true from then on.
 */
void notify_store(struct notify *n, const char *name, int fd, unsigned delay_ms);
void notify_remove(struct notify *n, const char *name);
bool notify_has_failed(struct notify *n);

/* Sends WATCHDOG=1, READY=1, ... A message that is still queued is not sent twice. */
void notify_state(struct notify *n, const char *state);

/*
 * Waits until the manager has processed all messages so far, and those held back. Return: 0; -ETIMEDOUT: not
 * within 5 s; errno of the send.
 */
int notify_barrier(struct notify *n);

/* Waits until all messages are sent, also those held back. Return: 0; -ETIMEDOUT: not within 5 s. */
int notify_flush(struct notify *n);
