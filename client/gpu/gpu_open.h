/*
 * Opening and closing a client's GPU (client/gpu/gpu.h): driver, device and kernels; and mapping the daemon's
 * extents there.
 */
#pragma once

#include "client/connection/extents.h"
#include "client/gpu/gpu.h"

/**
 * gpu_open() - the driver, a device, its kernels
 * @uuid:   NULL: the first device
 * @stream: of the device's primary context
 *
 * Return: 0; -EOPNOTSUPP: no driver, too old a one, no kernels in this build or for this GPU; -ENODEV;
 * -EINVAL: not a UUID; -ENOMEM, -EBUSY, -EIO: as cuda_fail().
 */
int gpu_open(const char *uuid, cu_stream stream, struct gpu **ret, struct errmsg *e);

/* After all memory was freed and all extents unmapped. Waits for the stream. NULL is fine; returns NULL. */
struct gpu *gpu_close(struct gpu *g);
static inline void gpu_closep(struct gpu **g)
{
    *g = gpu_close(*g);
}

/* client/connection/extents.h with the CUDA driver (gpu_extents.c). */
extern const struct extent_ops gpu_extent_ops;
