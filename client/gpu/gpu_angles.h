/*
 * Cosines and sines of RoPE in device memory, computed by the host, so that keys are turned by the same
 * numbers there. They are kept in blocks of 64 positions, the newest ones of a limited number.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/gpu/gpu.h"
#include "gpu/cuda/kernels/launch.h"

enum { GPU_ANGLE_BLOCKS = 512 }; /* 32768 positions: 16 MiB for 64 planes */

struct geometry;

struct gpu_angles {
    struct gpu_memory memory;
    uint32_t n_blocks;  /* 0: none yet */
    uint64_t *held;     /* [n_blocks] number of the block of positions there, plus 1; 0: none */
    uint64_t *launches; /* [n_blocks] the launch that uses it */
    uint64_t launch;    /* the present one */
};

/* The blocks that were covered before may be replaced from now on: their launch is queued. */
void gpu_angles_next_launch(struct gpu_angles *a);

/**
 * gpu_angles_cover() - provide the angles of positions first .. first + n - 1 for the present launch
 *
 * Return: 0; -EAGAIN: blocks of this launch are in the way: queue it first; as gpu_alloc().
 */
int gpu_angles_cover(struct gpu *g, struct gpu_angles *a, const struct geometry *geometry, size_t first,
                     size_t n, struct errmsg *e);

/* The most positions that one launch may use, from any position on. */
size_t gpu_angles_most(const struct gpu_angles *a);

struct launch_angles gpu_angles_of(const struct gpu_angles *a);
void gpu_angles_deinit(struct gpu *g, struct gpu_angles *a);
