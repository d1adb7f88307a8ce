/*
 * Stages pages between the threads that encode and decode, which work on the host's memory, and slots on a
 * GPU: a stage is a memory object of the host that the mover copies to or from (raw_append.c, raw_read.c).
 * Header and payload have the layout of the host's pool.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/gpu/mover.h"

struct account;
struct extent;
struct page_handle;
struct request;
struct server;

/* Of a server. Coordinates by side, that APPEND_RAW encoded. */
struct raw_counts {
    uint32_t n_stages; /* pages on their way between threads and GPUs */
    uint64_t coords[2], saturated[2];
};

/* At one time, since no quota has this memory. The last eighth is for tenants that have none. */
#define RAW_STAGES_MAX 16

struct raw_stage {
    struct server *server;
    struct account *account; /* has a reference */
    struct extent *memory;   /* NULL: none */
    uint32_t device;         /* of the mover */
    int gpu_fd;              /* of the slot's extent, which stays while the job has the slot; borrowed */
    uint64_t offset;         /* of the slot in the extent */
    size_t page_bytes, extent_bytes;
};

/**
 * raw_gpu_stage_init() - host memory for page @h of the session's device
 *
 * Return: 0; -EAGAIN with a sentence: RAW_STAGES_MAX are in use, or the tenant's share of them; errno of the
 * memory.
 */
int raw_gpu_stage_init(struct request *rq, const struct page_handle *h, struct raw_stage *ret_stage);
void raw_gpu_stage_deinit(struct raw_stage *s); /* when no copy is under way; accepts a zeroed stage */

uint8_t *raw_gpu_stage_data(const struct raw_stage *s); /* [page_bytes] */

/*
 * Copies header and payload. @done: see mover_ask(). Return: 0; -EAGAIN with a sentence: no request to the
 * mover is possible now.
 */
int raw_gpu_stage_copy(const struct raw_stage *s, bool to_gpu, mover_done done, void *ctx, struct errmsg *e);

/* Translates the mover's answer for the client. Return: 0; -EAGAIN: the mover ended; its own errno. */
int raw_gpu_stage_result(const struct mover_reply *reply, struct errmsg *e);
