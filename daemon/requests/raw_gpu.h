/*
 * A page of a GPU between the threads that code it, which work on the host's memory, and its slot: a memory
 * object of the host that the mover copies to or from (raw_append.c, raw_read.c). Header and payload as they
 * would lie in the host's pool.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/gpu/mover.h"

struct extent;
struct page_handle;
struct request;
struct server;

#define RAW_STAGES_MAX 16 /* at one time: they are memory of nobody's account */

struct raw_stage {
    struct server *server;
    struct extent *memory; /* NULL: none */
    uint32_t device;       /* of the mover */
    int gpu_fd;            /* of the slot's extent, which stays while the job has the slot; borrowed */
    uint64_t offset;       /* of the slot in it */
    size_t page_bytes, extent_bytes;
};

/**
 * raw_gpu_stage_init() - host memory for page @h of the session's device
 * Return: 0; -EAGAIN: RAW_STAGES_MAX are in use, with a sentence; -EOPNOTSUPP: in lent memory; errno of the
 * memory.
 */
int raw_gpu_stage_init(struct request *rq, const struct page_handle *h, struct raw_stage *ret_stage);
void raw_gpu_stage_deinit(struct raw_stage *s); /* no copy is under way; a zeroed one is fine */

uint8_t *raw_gpu_stage_data(const struct raw_stage *s); /* [page_bytes] */

/* Copies header and payload. @done: as of mover_ask(). Return: 0; -EAGAIN with a sentence: the mover cannot
 * be asked now. */
int raw_gpu_stage_copy(const struct raw_stage *s, bool to_gpu, mover_done done, void *ctx, struct errmsg *e);

/* The mover's answer as one for the client. Return: 0; -EAGAIN: it ended meanwhile; its own errno. */
int raw_gpu_stage_result(const struct mover_reply *reply, struct errmsg *e);
