/* Listening sockets: made at a path, or adopted from whoever started us. */
#pragma once

#include <sys/types.h>

struct errmsg;

struct listen_socket {
    int fd;      /* -1: none, or handed to the event loop */
    int lock_fd; /* of PATH.lock, held while we live */
    char *path;  /* what to unlink at the end; NULL for adopted sockets */
};

void listen_init(struct listen_socket *l);

/* Removes what listen_at() made. */
void listen_deinit(struct listen_socket *l);

/**
 * listen_at() - make a socket at @path
 * @type: SOCK_SEQPACKET: packets come with credentials; SOCK_STREAM: for monitoring
 *
 * PATH.lock is locked first: a second daemon is refused, a socket that a dead one left is replaced.
 *
 * Return: 0; -EADDRINUSE: another daemon serves it; -EEXIST: the path is not a socket; errno; with a
 * sentence.
 */
int listen_at(struct listen_socket *l, int type, const char *path, mode_t mode, struct errmsg *e);

/* @fd: a listening Unix SEQPACKET socket, owned from now on if it is one. Return: 0; -EINVAL; with a
 * sentence. */
int listen_adopt(struct listen_socket *l, int fd, const char *option, struct errmsg *e);
