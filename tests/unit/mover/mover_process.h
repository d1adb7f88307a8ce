/* Starts the real kvcobra-mover, sends requests as the daemon does and waits
 * for the replies, for tests of mover/. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "proto/mover_wire.h"

struct mover_process {
    int socket;
    pid_t pid;
};

/* Starts kvcobra-mover with the environment of the test. */
void mover_process_start(struct mover_process *o);

/* Closes the socket and waits. Return: the exit status, or -1 - signal. */
int mover_process_stop(struct mover_process *o);

/* Waits for a mover that exits by itself. Return: as mover_process_stop(). */
int mover_process_wait(struct mover_process *o);

/*
 * Sends a request and waits for the reply, which the caller frees with mover_reply_free(). @ret_fd: the
 * descriptor of the reply, owned by the caller; NULL if none is expected. Return: NULL: the mover has exited.
 */
Kvcobra__MoverReply *mover_process_ask(struct mover_process *o, Kvcobra__MoverRequest *m, const int *fds,
                                       size_t n_fds, int *ret_fd);

/* ---- requests to the mover ---- */

#define MIB ((size_t) 1 << 20)
#define EXTENT_BYTES (4 * MIB) /* a multiple of the granularity of real devices */

extern struct mover_process mover;
extern char reply_message[WIRE_TEXT_BYTES_MAX + 1]; /* message of the last reply_err() */

/* These functions return the errno of the reply, or -ENOTCONN if the mover has exited. */

int reply_err(Kvcobra__MoverReply *reply); /* frees the reply */
void start_open(void);                     /* starts the mover and opens device 0 for EXTENT_BYTES */
Kvcobra__MoverReply *ask_open(uint32_t number, const char *uuid, uint64_t bytes);
int ask_create(uint64_t bytes, int *ret_fd); /* on device 0, like all below */
/* @ranges: [n] offset, bytes; n <= 8 */
int ask_check(const int *fds, size_t n_fds, uint64_t extent_bytes, const uint64_t (*ranges)[2], size_t n,
              uint32_t *ret_crc);
int ask_copy(int extent, int file, uint64_t offset, uint64_t bytes, bool to_extent);
int ask_lists(pid_t pid); /* 1: @pid is listed; 0: it is not */
