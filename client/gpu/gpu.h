/*
 * A client's GPU: the device and its kernels, the stream that all of the client's work is queued on, memory
 * of its own.
 *
 * Order is the stream's. Memory that is given back may be used again by what is queued later, and by nothing
 * else: nobody waits for it. Only gpu_synchronize(), gpu_read() and gpu_write() wait. A stream that is being
 * captured may not be waited for, and no memory may be allocated meanwhile: -EBUSY.
 *
 * A GPU that is lost (-EIO from anything in gpu/cuda) stays lost for this process: every later call says so,
 * and what is left to do is to free the client.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "gpu/cuda/kernels.h"

struct kvc_client;
struct model_table;

#define GPU_CACHED_BYTES                                                                                     \
    ((size_t) 64 << 20) /* more than this goes back to the driver when the stream is waited for */
#define GPU_WORKSPACE_BYTES ((size_t) 256 << 20)
#define GPU_FLAGS 256 /* of a slab */

/* Device memory; bytes 0: none. */
struct gpu_memory {
    cu_ptr at;    /* a multiple of 256 */
    size_t bytes; /* rounded up */
};

/* Words that kernels raise, one per sequence, read together. */
struct gpu_flag_slab {
    struct gpu_memory memory;   /* uint32_t [GPU_FLAGS] */
    uint32_t raised[GPU_FLAGS]; /* as it was at gpu_flags_read() */
    bool taken[GPU_FLAGS];
};

/* What one launch leaves for another; grows, and what a captured graph uses stays as long as the GPU does. */
struct gpu_workspace {
    struct gpu_memory memory;
    size_t most_bytes; /* that one launch may ask for: what needs more is cut */
    bool is_captured;
    struct gpu_memory *kept; /* smaller ones of before, that graphs use */
    size_t n_kept;
};

struct gpu {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    char uuid[CUDA_UUID_CHARS];
    struct cuda_space *space;
    struct cuda_kernels *kernels;
    cu_stream stream; /* the caller's; NULL: the default one */
    bool lost;
    struct errmsg why_lost;
    struct gpu_memory *cached;   /* given back, for whoever wants as much: behind what is queued */
    size_t n_cached, n_memories; /* of all that exist, @cached has room */
    size_t cached_bytes;
    struct gpu_flag_slab **flags;
    size_t n_flag_slabs;
    struct gpu_workspace workspace; /* of attention */
};

/**
 * gpu_open() - the driver, a device, its kernels
 * @uuid:   NULL: the first device
 * @stream: of the device's primary context
 *
 * Return: 0; -EOPNOTSUPP: no driver, too old a one, no kernels in this build or for this GPU; -ENODEV;
 * -EINVAL: not a UUID; -ENOMEM, -EBUSY, -EIO: as cuda_fail().
 */
int gpu_open(const char *uuid, cu_stream stream, struct gpu **ret, struct errmsg *e);

/* All memory was given back and no extent is mapped. Waits for the stream. NULL is fine; returns NULL. */
struct gpu *gpu_close(struct gpu *g);
static inline void gpu_closep(struct gpu **g)
{
    *g = gpu_close(*g);
}

/* First statement of what uses the GPU. Return: 0; -EIO: it is lost, with the sentence of that time. */
int gpu_check(const struct gpu *g, struct errmsg *e);

/**
 * gpu_result() - what a call of gpu/cuda returned, passed on
 * @e: where that call put its sentence
 *
 * -EIO makes the loss last. Every call of gpu/cuda on a client's behalf goes through here: r = gpu_result(g,
 * cuda_attend(…), e).
 */
int gpu_result(struct gpu *g, int r, struct errmsg *e);

/* The same for one of the driver itself; @what: "cannot …". */
int gpu_cu_result(struct gpu *g, cu_result result, struct errmsg *e, const char *what);

/* gpu_check(), and the GPU's context is this thread's until cuda_space_leave(). For what calls the driver
 * itself. */
int gpu_enter(struct gpu *g, struct errmsg *e);

/* Whether the stream records what is queued, for a CUDA graph. */
bool gpu_is_capturing(struct gpu *g);

/* Return: 0; -EBUSY with a sentence: it does; -EIO. */
int gpu_check_not_capturing(struct gpu *g, struct errmsg *e);

/* Waits for all that was queued. Return: 0; -EBUSY: the stream is being captured; -EIO. */
int gpu_synchronize(struct gpu *g, struct errmsg *e);

/* Before what it maps is unmapped: waits for the stream or, if that is not there any more, for the device.
 * Return: whether all work has ended. */
bool gpu_quiesce(struct gpu *g);

/* Waits for the stream until now, uses @stream from here on. Return: 0; -EBUSY: one of the two is being
 * captured; -EIO. */
int gpu_set_stream(struct gpu *g, cu_stream stream, struct errmsg *e);

/* ---- gpu_memory.c ---- */

/**
 * gpu_alloc() - device memory; contents are undefined
 *
 * What was given back before is taken first. Return: 0; -ENOMEM with a sentence, nothing changed; -EBUSY:
 * there is none to use again, and the stream is being captured; -EIO.
 */
int gpu_alloc(struct gpu *g, size_t bytes, struct gpu_memory *ret, struct errmsg *e);

/* Whatever is queued may still use it. @m is empty afterwards; an empty one is fine. */
void gpu_free(struct gpu *g, struct gpu_memory *m);

/* The same straight to the driver, which waits for the device: for what nobody will want as much of again.
 * Not while the stream is being captured. */
void gpu_free_now(struct gpu *g, struct gpu_memory *m);

/* What is cached beyond @keep_bytes goes back to the driver; the stream must have been waited for. */
void gpu_trim(struct gpu *g, size_t keep_bytes);

/* g->workspace of at least @bytes. Return: 0; as gpu_alloc(); -EBUSY: @capturing, and it would have to grow.
 */
int gpu_workspace_reserve(struct gpu *g, size_t bytes, bool capturing, struct errmsg *e);
void gpu_workspace_deinit(struct gpu *g);

/* Queued: @bytes from device memory to device memory. Return: 0; as cuda_fail(). */
int gpu_copy(struct gpu *g, cu_ptr to, cu_ptr from, size_t bytes, struct errmsg *e);

/* From the host, in its turn in the stream; waits for it. Return: 0; -EBUSY; -EIO. */
int gpu_write(struct gpu *g, cu_ptr to, const void *from, size_t bytes, struct errmsg *e);

/* To the host: waits. Return: 0; -EBUSY; -EIO. */
int gpu_read(struct gpu *g, void *to, cu_ptr from, size_t bytes, struct errmsg *e);

/* A flag, lowered for all that is queued later. Return: 0; as gpu_alloc(). */
int gpu_flag_take(struct gpu *g, uint32_t *ret_flag, struct errmsg *e);
void gpu_flag_drop(struct gpu *g, uint32_t flag);
/* Where kernels raise it, uint32_t [1]. */
cu_ptr gpu_flag_address(const struct gpu *g, uint32_t flag);
/* Waits, and reads them all. Return: as gpu_read(). */
int gpu_flags_read(struct gpu *g, struct errmsg *e);
/* As it was then. */
bool gpu_flag_is_raised(const struct gpu *g, uint32_t flag);

/* ---- gpu_pages.c ---- */

/* Slots for private pages, in slabs; see struct heap_pool, which is the same on the host. */
struct gpu_slots {
    size_t slot_bytes;
    cu_ptr *free; /* [n_free], room for all slots */
    size_t n_free, n_slots;
    struct gpu_memory *slabs;
    size_t n_slabs;
};

/* Return: 0; as gpu_alloc(). */
int gpu_slot_take(struct gpu *g, struct gpu_slots *p, cu_ptr *ret, struct errmsg *e);
void gpu_slot_give(struct gpu_slots *p, cu_ptr slot);
void gpu_slots_deinit(struct gpu *g, struct gpu_slots *p);

/**
 * gpu_table() - the table as kernels read it, in device memory: made and checked when it is first asked for
 * @ret: of a struct device_table; stays until the table is freed
 *
 * The first time waits for the stream: -EBUSY while it is being captured. Return: 0; -EOPNOTSUPP: a shape
 * that no kernel takes, named, or gpu_check_table() found a kernel wrong, then and ever after; as
 * gpu_alloc().
 */
int gpu_table(struct kvc_client *c, struct model_table *t, cu_ptr *ret);
void gpu_table_drop(struct gpu *g, struct model_table *t);

/* ---- gpu_check.c ---- */

/**
 * gpu_check_table() - whether the GPU computes with a table what the CPU does
 * @table: its image on the device, of @l
 *
 * Runs every kernel that the table selects once, on a made-up sequence. Waits. Return: 0; -EOPNOTSUPP with a
 * sentence: device, kernel, what differs and by how much; -EBUSY: the stream is being captured; as
 * gpu_alloc().
 */
int gpu_check_table(struct gpu *g, const struct page_layout *l, cu_ptr table, struct errmsg *e);
