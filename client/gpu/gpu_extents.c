/* The daemon's extents on a GPU. See gpu_open.h. */
#include "client/gpu/gpu_open.h"

#include <errno.h>
#include <unistd.h>

#include "client/connection/connection.h"
#include "client/gpu/gpu.h"
#include "gpu/cuda/extent.h"

static void gpu_extents_set_mapping(struct mapped_extent *x)
{
    x->device = cuda_extent_address(x->cuda_extent);
    x->bytes = cuda_extent_bytes(x->cuda_extent);
}

static int gpu_extents_import(struct extent_cache *cache, int fd, size_t bytes, struct mapped_extent *x,
                              struct errmsg *e)
{
    struct gpu *g = cache->gpu;
    int r;

    if (bytes % g->device.granularity != 0) {
        (void) close(fd);
        return fail(e, -EPROTO, "kvcobrad sent an extent of %zu bytes: the GPU has memory in units of %zu",
                    bytes, g->device.granularity);
    }

    r = gpu_result(g, cuda_extent_import(g->space, fd, bytes, CU_ACCESS_READ, &x->cuda_extent, e), e);
    if (r < 0)
        return r;

    gpu_extents_set_mapping(x);
    return 0;
}

static void gpu_extents_unmap(struct mapped_extent *x)
{
    x->cuda_extent = cuda_extent_free(x->cuda_extent);
}

const struct extent_ops gpu_extent_ops = {
    .import = gpu_extents_import,
    .unmap = gpu_extents_unmap,
    .unmaps_at_once = false,
};
