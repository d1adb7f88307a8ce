/* Listening sockets: created at a path, or adopted from the process that started the daemon. */
#pragma once

#include <sys/types.h>

struct errmsg;

struct listen_socket {
    int fd;      /* -1: none, or handed to the event loop */
    int lock_fd; /* of PATH.lock, locked while the daemon runs */
    char *path;  /* unlinked at the end; NULL for adopted sockets */
};

void listen_init(struct listen_socket *l);

/* Closes the socket, and removes the files that listen_at() created. */
void listen_deinit(struct listen_socket *l);

/**
 * listen_at() - create a socket at @path
 * @type:  SOCK_SEQPACKET: packets come with credentials; SOCK_STREAM: for monitoring
 * @group: of the socket; (gid_t) -1: the one of a new file
 *
 * Locks PATH.lock first. So a second daemon fails, and the socket of a daemon that died is replaced.
 *
 * Return, with a sentence: 0; -EADDRINUSE: another daemon serves @path; -EEXIST: @path exists and is not a
 * socket; errno.
 */
int listen_at(struct listen_socket *l, int type, const char *path, mode_t mode, gid_t group,
              struct errmsg *e);

/*
 * listen_adopt() - use a socket that another process created
 * @fd:     a listening Unix SEQPACKET socket; owned by @l from now on if it is one
 * @option: the name of @fd in the sentence
 *
 * Return: 0; -EINVAL with a sentence.
 */
int listen_adopt(struct listen_socket *l, int fd, const char *option, struct errmsg *e);

#define LISTEN_PATH_BYTES 109

/* The path at which @fd listens, also if another process bound it; "" if it has none. */
void listen_path(int fd, char ret[static LISTEN_PATH_BYTES]);

/*
 * Makes the kernel refuse descriptors on connections that are made from now on. Before Linux 6.16 it cannot,
 * and the event loop refuses them (ev_stream.c).
 */
void listen_refuse_descriptors(struct listen_socket *l);
