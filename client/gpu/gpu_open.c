/* Opening and closing a GPU. See gpu.h. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/gpu_open.h"

struct gpu *gpu_close(struct gpu *g)
{
    if (!g)
        return NULL;
    if (g->kernels)
        (void) gpu_quiesce(g);
    gpu_ring_free(g);
    for (size_t i = 0; i < g->n_flag_slabs; i++) {
        gpu_free(g, &g->flags[i]->memory);
        free(g->flags[i]);
    }
    free(g->flags);
    gpu_workspace_deinit(g);
    gpu_trim(g, 0);
    assert(g->n_memories == 0);
    free(g->cached);
    g->kernels = cuda_kernels_free(g->kernels);
    g->space = cuda_space_free(g->space);
    g->driver = cuda_driver_close(g->driver);
    free(g);
    return NULL;
}

int gpu_open(const char *uuid, cu_stream stream, struct gpu **ret, struct errmsg *e)
{
    _cleanup_(gpu_closep) struct gpu *g = calloc(1, sizeof(*g));
    int r;

    if (!g)
        return fail(e, -ENOMEM, "out of memory while opening a GPU");

    g->stream = stream;
    g->workspace.most_bytes = GPU_WORKSPACE_BYTES;
    r = cuda_driver_open(&g->driver, e);
    if (r == 0)
        r = cuda_device_find(g->driver, uuid, &g->device, e);
    if (r == 0)
        r = cuda_space_new(g->driver, &g->device, 2 * g->device.bytes, &g->space,
                           e); /* twice what fits: gaps */
    if (r == 0)
        r = cuda_kernels_new(g->space, &g->kernels, e);
    if (r < 0)
        return r;

    cuda_uuid_format(&g->device.uuid, g->uuid);
    *ret = take_ptr(g);
    return 0;
}
