/*
 * Clients of a GPU pool, each a process of its own (the driver does not survive a fork), told what to do over
 * a socket pair: so that one can be killed at a point that the test knows. They speak the protocol by hand
 * and import extents on the stand-in driver.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "tests/e2e/raw_fixture.h"

#define GPU_UUID "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0" /* of the stand-in's first device */
#define GPU_PAGE_BYTES 4224 /* of the small model's class rest, with its header */

struct gpu_client {
    pid_t pid;
    int fd;
};

/* Starts a process; asserts. */
struct gpu_client gpu_client_new(void);

/* The same as another user; the caller is root. */
struct gpu_client gpu_client_new_as(uid_t uid);

/* SIGKILL and wait. */
void gpu_client_kill(struct gpu_client *a);
/* The same while it does something: a reservation (@s NULL) of chunk @n, or a commit of it. */
void gpu_client_kill_busy(struct gpu_client *a, uint64_t n, const struct raw_slot *s);
/* BYE if it is connected, and an orderly end; false: it did not end in order. */
bool gpu_client_end(struct gpu_client *a);

/* A session on the GPU; an -EAGAIN while it is being opened is asked again. Return: errno of HELLO or
 * OPEN_MODEL. */
int gpu_open(struct gpu_client *a, const char *uuid);
int gpu_resume(struct gpu_client *a);      /* a new connection for the same session */
void gpu_disconnect(struct gpu_client *a); /* closes the socket, without BYE */
int gpu_bye(struct gpu_client *a);

/* Chunk @n, class rest. gpu_reserve() asks once; gpu_reserve_soon() again while an extent is being made. */
struct raw_slot gpu_reserve(struct gpu_client *a, uint64_t n);
struct raw_slot gpu_reserve_soon(struct gpu_client *a, uint64_t n);

/* Imports the extent if it is not, and writes the payload of chunk @n into the slot. Return: errno. */
int gpu_fill(struct gpu_client *a, uint64_t n, const struct raw_slot *s);
int gpu_commit(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease);
int gpu_abort(struct gpu_client *a, const struct raw_slot *s);

/* The three together; asserts. */
struct raw_slot gpu_publish(struct gpu_client *a, uint64_t n, uint64_t *ret_lease);

/* Return: errno; -ENODATA: not granted. */
int gpu_lease(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease);
int gpu_release(struct gpu_client *a, uint64_t lease);
int gpu_keep(struct gpu_client *a,
             uint64_t lease); /* KEEP_LEASES of this one, or (0) of none; the last message */

/* Whether the slot has the payload of chunk @n, read through the driver. */
bool gpu_reads(struct gpu_client *a, uint64_t n, const struct raw_slot *s);
void gpu_damage(struct gpu_client *a, const struct raw_slot *s); /* one byte of its payload */

/* GET_EXTENT of a number. Return: errno. */
int gpu_get_extent(struct gpu_client *a, uint64_t extent);

/* READ_RAW of a lease. Return: errno. */
int gpu_read_raw(struct gpu_client *a, uint64_t lease);

/* Allocates, clears and lends memory of the client's. Return: errno. */
int gpu_lend(struct gpu_client *a, size_t bytes, uint64_t *ret_extent);
