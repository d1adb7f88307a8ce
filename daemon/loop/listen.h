/* Listening sockets: created at a path, or adopted from the process that started the daemon. */
#pragma once

#include <sys/types.h>

struct errmsg;
struct names;

struct listen_socket {
    int fd;      /* -1: none, or handed to the event loop */
    int lock_fd; /* of PATH.lock, locked while the daemon runs */
    int path_fd; /* of the socket's file, without access: no other file gets its inode */
    char *path;  /* removed at the end if it still means this socket; NULL for adopted sockets */
};

void listen_init(struct listen_socket *l);

/* Closes the socket, and removes the files that listen_at() created; files of others that have their names
 * now stay. */
void listen_deinit(struct listen_socket *l);

/**
 * listen_at() - create a socket at @path
 * @type:  SOCK_SEQPACKET: packets come with credentials; SOCK_STREAM: for monitoring
 * @group: of the socket; (gid_t) -1: the one of a new file
 *
 * Locks PATH.lock first. So a second daemon fails, and the socket of a daemon that died is replaced.
 *
 * Return, with a sentence: 0; -EADDRINUSE: another process serves @path; -EEXIST: @path exists and is not a
 * socket; -EPERM: it is a socket of another user; -ESTALE: it was replaced at once; errno.
 */
int listen_at(struct listen_socket *l, int type, const char *path, mode_t mode, gid_t group,
              struct errmsg *e);

/*
 * What has the name @path, without changing anything. Return, with a sentence: 0: a socket of this user or of
 * root; -ENOENT: nothing; -EEXIST, -EPERM: see listen_at(); -ENAMETOOLONG; errno.
 */
int listen_look(const char *path, struct errmsg *e);

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

/*
 * Watches the names of the socket and of its lock. @path: where it listens, also if another process bound it;
 * "": nowhere. An adopted socket is watched if its file is visible. Return: 0; see names_add().
 */
int listen_watch(const struct listen_socket *l, struct names *n, const char *what, const char *path,
                 struct errmsg *e);
