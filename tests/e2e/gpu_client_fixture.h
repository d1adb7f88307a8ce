/*
 * Clients of a GPU pool, each in a process of its own because the driver does not survive a fork. The test
 * sends them orders over a socket pair, so that it can kill one at a known point. They speak the protocol
 * without the library and import extents on the stand-in driver.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "tests/e2e/raw_fixture.h"

#define GPU_UUID "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0" /* of the stand-in's first device */
#define GPU_PAGE_BYTES 4224 /* of the small model's class rest, header included */

struct gpu_client {
    pid_t pid;
    int fd;
};

/* Starts a process; asserts. */
struct gpu_client gpu_client_new(void);

/* Starts a process of another user; the caller is root. */
struct gpu_client gpu_client_new_as(uid_t uid);

/* Sends SIGKILL and waits for the exit. */
void gpu_client_kill(struct gpu_client *a);
/* Sends SIGKILL while the process reserves chunk @n (@s NULL) or commits it. */
void gpu_client_kill_busy(struct gpu_client *a, uint64_t n, const struct raw_slot *s);
/* BYE if it is connected, then exit; false if it does not exit with 0. */
bool gpu_client_end(struct gpu_client *a);

/*
 * Opens a session on the GPU, and repeats it while the daemon answers -EAGAIN. Return: errno
 * of HELLO or OPEN_MODEL.
 */
int gpu_open(struct gpu_client *a, const char *uuid);
int gpu_resume(struct gpu_client *a);      /* a new connection for the same session */
void gpu_disconnect(struct gpu_client *a); /* closes the socket, without BYE */
int gpu_bye(struct gpu_client *a);

/* Reserves chunk @n, class rest. gpu_reserve_soon() repeats the request while an extent is being created. */
struct raw_slot gpu_reserve(struct gpu_client *a, uint64_t n);
struct raw_slot gpu_reserve_soon(struct gpu_client *a, uint64_t n);

/* Imports the extent if necessary, and writes the payload of chunk @n into the slot. Return: errno. */
int gpu_fill(struct gpu_client *a, uint64_t n, const struct raw_slot *s);
int gpu_commit(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease);
int gpu_abort(struct gpu_client *a, const struct raw_slot *s);

/* Reserves, fills and commits; asserts. */
struct raw_slot gpu_publish(struct gpu_client *a, uint64_t n, uint64_t *ret_lease);

/* Return: errno; -ENODATA: not granted. */
int gpu_lease(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease);
int gpu_release(struct gpu_client *a, uint64_t lease);
int gpu_keep(struct gpu_client *a,
             uint64_t lease); /* KEEP_LEASES of this lease, or of none (0), as the last message */

/* True if the slot, read through the driver, has the payload of chunk @n. */
bool gpu_reads(struct gpu_client *a, uint64_t n, const struct raw_slot *s);
void gpu_damage(struct gpu_client *a, const struct raw_slot *s); /* changes one byte of its payload */

/* GET_EXTENT. Return: errno. */
int gpu_get_extent(struct gpu_client *a, uint64_t extent);

/* READ_RAW. Return: errno. */
int gpu_read_raw(struct gpu_client *a, uint64_t lease);
