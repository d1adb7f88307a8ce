/*
 * The daemon of this user: found, started in the background and ended, for kvcobra up and down. Its
 * sockets and its log are in the folder of proto/user_folder.h. Both commands hold a lock there, so that
 * two of them never act at once.
 */
#pragma once

#include <sys/types.h>

#include "proto/user_folder.h"

struct errmsg;

enum {
    OWN_DAEMON_PATH_BYTES = USER_FOLDER_BYTES + 32,
    OWN_DAEMON_READY_MS = 60000, /* a busy machine needs seconds */
    OWN_DAEMON_END_MS = 60000,   /* it writes its disk tier first */
};

struct own_daemon {
    char folder[USER_FOLDER_BYTES];  /* of the sockets */
    char log[OWN_DAEMON_PATH_BYTES]; /* of the daemon that kvcobra up started last in this folder */
    int folder_fd, lock_fd, pidfd;   /* -1: none */
    pid_t pid;                       /* 0: none runs */
};

#define OWN_DAEMON_INIT                                                                                      \
    {                                                                                                        \
        .folder_fd = -1, .lock_fd = -1, .pidfd = -1                                                          \
    }

void own_daemon_deinit(struct own_daemon *d); /* the daemon runs on */

/**
 * own_daemon_open() - lock the folder, and find the daemon that serves there
 *
 * Makes the folder. Waits while another kvcobra up or down has the lock.
 *
 * Return: 0; -EPERM, -ENOTDIR: the folder is not private to this user; -EXDEV: the daemon is of another
 * PID namespace; an errno; with a sentence.
 */
int own_daemon_open(struct own_daemon *d, struct errmsg *e);

/**
 * own_daemon_start() - start kvcobrad --user, and wait until it serves
 * @program: path of kvcobrad
 *
 * Return: 0; -ETIMEDOUT, -ECANCELED: it did not start, and does not run; an errno; with a sentence, which
 * is the daemon's own if it logged one.
 */
int own_daemon_start(struct own_daemon *d, const char *program, struct errmsg *e);

/*
 * For the child of a fork that becomes a program in the background; async-signal-safe calls only. It has its
 * own session, so no terminal ends it, no input, @log_fd for its output, and @ready_fd as
 * OWN_DAEMON_READY_FD; all other descriptors are closed. Failures end it with 127.
 */
enum { OWN_DAEMON_READY_FD = 3 };
void own_daemon_detach(int log_fd, int ready_fd);

/* Ends the daemon that was found, and waits for its end. Return: 0; -ETIMEDOUT; an errno; with a sentence. */
int own_daemon_end(struct own_daemon *d, struct errmsg *e);
