/*
 * Device memory of a client's GPU (client/gpu/gpu.h): allocation from a cache of freed memory, the workspace
 * of attention, copies, and the flags that kernels set on errors.
 */
#pragma once

#include "client/gpu/gpu.h"

/**
 * gpu_alloc() - device memory; contents are undefined
 *
 * Freed memory of this size is used again first.
 * Return: 0; -ENOMEM with a sentence, nothing changed; -EBUSY: there is none to use again, and
 * the stream is being captured; -EIO.
 */
int gpu_alloc(struct gpu *g, size_t bytes, struct gpu_memory *ret, struct errmsg *e);

/* Frees @m, also if queued work still uses it. @m is empty afterwards; an empty one is fine. */
void gpu_free(struct gpu *g, struct gpu_memory *m);

/* Frees @m in the driver, which waits for the device: for sizes that are not allocated again. Not while the
 * stream is being captured. */
void gpu_free_now(struct gpu *g, struct gpu_memory *m);

/* Frees cached memory beyond @keep_bytes in the driver; the stream must have been waited for. */
void gpu_trim(struct gpu *g, size_t keep_bytes);

/* g->workspace of at least @bytes.
 * Return: 0; as gpu_alloc(); -EBUSY: @capturing, and it would have to grow. */
int gpu_workspace_reserve(struct gpu *g, size_t bytes, bool capturing, struct errmsg *e);
void gpu_workspace_deinit(struct gpu *g);

/* Queues a copy of @bytes from device memory to device memory. Return: 0; as cuda_fail(). */
int gpu_copy(struct gpu *g, cu_ptr to, cu_ptr from, size_t bytes, struct errmsg *e);

/* Copies from host memory, in stream order, and waits. Return: 0; -EBUSY; -EIO. */
int gpu_write(struct gpu *g, cu_ptr to, const void *from, size_t bytes, struct errmsg *e);

/* Waits for the stream, then copies to host memory. Return: 0; -EBUSY; -EIO. */
int gpu_read(struct gpu *g, void *to, cu_ptr from, size_t bytes, struct errmsg *e);

/* A flag that is 0 for all work queued later. Return: 0; as gpu_alloc(). */
int gpu_flag_take(struct gpu *g, uint32_t *ret_flag, struct errmsg *e);
void gpu_flag_drop(struct gpu *g, uint32_t flag);
/* Where kernels set it, uint32_t [1]. */
cu_ptr gpu_flag_address(const struct gpu *g, uint32_t flag);
/* Waits, then reads all flags. Return: as gpu_read(). */
int gpu_flags_read(struct gpu *g, struct errmsg *e);
/* As of the last gpu_flags_read(). */
bool gpu_flag_is_raised(const struct gpu *g, uint32_t flag);
