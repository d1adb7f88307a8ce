/* Starts kvcobra-mover, and collects it after it ended. Used by mover.c. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct errmsg;

struct mover_process {
    pid_t pid;   /* 0: no process, or it was collected */
    int pidfd;   /* readable once the process ended; -1: none */
    bool killed; /* by mover_process_kill() */
};

/**
 * mover_process_start() - run the executable at @path with one end of a socket pair as MOVER_SOCKET_FD
 * @ret_socket: the other end, close-on-exec; the caller's
 *
 * The process gets the environment, /dev/null as input, the daemon's standard error, no other descriptor,
 * and a process group of its own, so that signals of a terminal reach the daemon alone.
 *
 * Return: 0; errno of posix_spawn(), pidfd_open() ...
 */
int mover_process_start(const char *path, struct mover_process *ret_process, int *ret_socket);

/* Kills the process, which ends when the driver lets it. Does nothing if there is none. */
void mover_process_kill(struct mover_process *p);

/*
 * Collects the process and logs how it ended; kills it first if it runs. If the driver delays the end by more
 * than a second, the process is not collected here: init collects it after kvcobrad has exited.
 */
void mover_process_end(struct mover_process *p);
