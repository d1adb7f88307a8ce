/*
 * A client's GPU: the device and its kernels, the stream on which all work of the client is queued,
 * and device memory for that work.
 *
 * The stream orders all work. Only work that is queued later uses freed memory again, so freeing does not
 * wait. Only gpu_synchronize(), gpu_read() and gpu_write() wait. While the stream is being captured it cannot
 * be waited for and no memory can be allocated: -EBUSY.
 *
 * A GPU that is lost (-EIO from any function of gpu/cuda) stays lost for this process: every later call
 * returns -EIO, and the client can only be freed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "gpu/cuda/kernels.h"

struct gpu_ring;

/* Cached memory above this is freed when the stream is waited for. */
#define GPU_CACHED_BYTES ((size_t) 64 << 20)
#define GPU_WORKSPACE_BYTES ((size_t) 256 << 20)
#define GPU_FLAGS 256 /* of a slab */
#define GPU_KNOWN 8   /* ranges of the caller's memory that were found last */

/* Device memory; bytes 0: none. */
struct gpu_memory {
    cu_ptr at;    /* a multiple of 256 */
    size_t bytes; /* rounded up */
};

/* Words that kernels set on errors, one per sequence, read together. */
struct gpu_flag_slab {
    struct gpu_memory memory;   /* uint32_t [GPU_FLAGS] */
    uint32_t raised[GPU_FLAGS]; /* as of gpu_flags_read() */
    bool taken[GPU_FLAGS];
};

/* Memory for partial results between two launches. It grows; memory that a captured graph uses is kept as
 * long as the GPU. */
struct gpu_workspace {
    struct gpu_memory memory;
    size_t most_bytes; /* that one launch may use: calls that need more are cut */
    bool is_captured;
    struct gpu_memory *kept; /* earlier, smaller memory that graphs use */
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
    struct gpu_memory *cached;   /* freed memory, which later work can use */
    size_t n_cached, n_memories; /* n_memories exist; @cached has room for all of them */
    size_t cached_bytes;
    struct gpu_flag_slab **flags;
    size_t n_flag_slabs;
    struct gpu_workspace workspace;     /* of attention, or of appends to staged sequences */
    struct gpu_ring *ring;              /* of a client whose pages are in host memory; else NULL */
    struct gpu_memory known[GPU_KNOWN]; /* gpu_pointer.h */
    unsigned next_known;
};

/* Before the GPU is used. Return: 0; -EIO: it is lost, with the sentence of the loss. */
int gpu_check_usable(const struct gpu *g, struct errmsg *e);

/**
 * gpu_result() - return the result of a function of gpu/cuda; -EIO marks the GPU as lost
 * @e: has the sentence of that function
 *
 * Every call of gpu/cuda for a client uses it: r = gpu_result(g, cuda_attend(...), e).
 */
int gpu_result(struct gpu *g, int r, struct errmsg *e);

/* The same for a function of the driver; @what: "cannot ...". */
int gpu_cu_result(struct gpu *g, cu_result result, struct errmsg *e, const char *what);

/* gpu_check_usable(), and makes the GPU's context current until cuda_space_leave().
 * Before calls of the driver. */
int gpu_enter(struct gpu *g, struct errmsg *e);

/* Whether the stream records queued work for a CUDA graph. */
bool gpu_is_capturing(struct gpu *g);

/* Return: 0; -EBUSY with a sentence: the stream is being captured; -EIO. */
int gpu_check_not_capturing(struct gpu *g, struct errmsg *e);

/* Waits for all queued work. Return: 0; -EBUSY: the stream is being captured; -EIO. */
int gpu_synchronize(struct gpu *g, struct errmsg *e);

/* Before extents are unmapped: waits for the stream or, if that was destroyed, for the device.
 * Return: whether all work has ended. */
bool gpu_quiesce(struct gpu *g);

/* Waits for the present stream and uses @stream from then on.
 * Return: 0; -EBUSY: one of the two is being captured; -EIO. */
int gpu_set_stream(struct gpu *g, cu_stream stream, struct errmsg *e);
