/* The daemon's end of a conversation with the real kvcobra-mover, for tests of it: one question, one answer,
 * waited for. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "proto/mover_wire.h"

struct other_end {
    int socket;
    pid_t pid;
};

/* Starts it with this environment. */
void other_end_start(struct other_end *o);

/* Closes the socket and waits. Return: the exit status, or -1 - signal. */
int other_end_stop(struct other_end *o);

/* Waits for the end of one that ends by itself. Return: likewise. */
int other_end_wait(struct other_end *o);

/*
 * Asks and waits. @ret_fd: of the answer, the caller's; may be NULL where none comes. The answer is freed
 * with mover_reply_free(); NULL: the mover is gone.
 */
Kvcobra__MoverReply *other_end_ask(struct other_end *o, Kvcobra__MoverRequest *m, const int *fds,
                                   size_t n_fds, int *ret_fd);

/* ---- the one of a test, and questions to it: errno of the answer, -ENOTCONN if it is gone ---- */

#define MIB ((size_t) 1 << 20)
#define EXTENT_BYTES (4 * MIB) /* of units that real devices have too */

extern struct other_end mover;
extern char answer_sentence[WIRE_TEXT_BYTES_MAX + 1]; /* of the last answer_err() */

int answer_err(Kvcobra__MoverReply *reply); /* and frees it */
void start_open(void);                      /* with device 0 open for EXTENT_BYTES */
Kvcobra__MoverReply *ask_open(uint32_t number, const char *uuid, uint64_t bytes);
int ask_create(uint64_t bytes, int *ret_fd); /* on device 0, as what follows */
/* @ranges: [n] offset, bytes; n <= 8 */
int ask_check(const int *fds, size_t n_fds, uint64_t extent_bytes, const uint64_t (*ranges)[2], size_t n,
              uint32_t *ret_crc);
int ask_copy(int extent, int file, uint64_t offset, uint64_t bytes, bool to_extent);
int ask_lists(pid_t pid); /* whether @pid is among those listed */
