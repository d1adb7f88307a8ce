/* Starting kvcobra-mover and seeing it end; for mover.c. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct errmsg;

struct mover_process {
    pid_t pid;   /* 0: none, or it was reaped */
    int pidfd;   /* readable once it ended; -1: none */
    bool killed; /* by us */
};

/**
 * mover_process_start() - run the executable at @path with one end of a socket pair as MOVER_SOCKET_FD
 * @ret_socket: the other end, close-on-exec; the caller's
 *
 * It gets the environment, /dev/null as input, our standard error, no other descriptor, and a process group
 * of its own, so that what a terminal sends reaches the daemon alone.
 *
 * Return: 0; errno of posix_spawn(), pidfd_open() ...
 */
int mover_process_start(const char *path, struct mover_process *ret_process, int *ret_socket);

/* It ends at once, when the driver lets it. Nothing if there is none. */
void mover_process_kill(struct mover_process *p);

/*
 * Collects it and logs how it ended; kills it first if it has not. One that the driver holds longer than a
 * second is left to whoever reaps our orphans.
 */
void mover_process_end(struct mover_process *p);
