/* See gpu_extents.h. */
#include "client/gpu/gpu_extents.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "client/connection/connection.h"
#include "client/gpu/external_memory.h"
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

/* No process can open the handle of its own memory: the client uses its memory by the address. */
static int gpu_extents_map_external(struct gpu *g, const Kvcobra__GetExtentReply *reply,
                                    struct mapped_extent *x, struct errmsg *e)
{
    const struct external_memory *own = external_memory_find(g->external, reply->ipc_handle.data);
    struct cu_ipc_mem_handle handle;
    int r;

    x->external = true;
    x->ours = own != NULL;
    if (own && own->bytes != reply->bytes)
        return fail(e, -EPROTO,
                    "kvcobrad has extent %" PRIu64 " of %" PRIu64
                    " bytes in memory of this client that has %zu",
                    x->id, reply->bytes, own->bytes);
    if (own)
        return cuda_extent_borrow(g->space, own->at, own->bytes, &x->cuda_extent, e);

    memcpy(handle.bytes, reply->ipc_handle.data, sizeof(handle.bytes));
    r = gpu_result(g, cuda_extent_open(g->space, &handle, (size_t) reply->bytes, &x->cuda_extent, e), e);
    return r == -ESTALE ? -EXDEV : r;
}

static int gpu_extents_import_external(struct extent_cache *cache, const Kvcobra__GetExtentReply *reply,
                                       struct mapped_extent *x, struct errmsg *e)
{
    int r;

    if (!bytes_are(reply->ipc_handle, sizeof(((struct cu_ipc_mem_handle *) NULL)->bytes)) ||
        reply->bytes == 0 || reply->bytes > SIZE_MAX)
        return fail(e, -EPROTO, "kvcobrad sent no usable handle for extent %" PRIu64, x->id);
    r = gpu_extents_map_external(cache->gpu, reply, x, e);
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
    .import_external = gpu_extents_import_external,
    .unmap = gpu_extents_unmap,
    .unmaps_at_once = false,
};
