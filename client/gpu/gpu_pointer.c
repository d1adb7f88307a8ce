/* See gpu_pointer.h. */
#include "client/gpu/gpu_pointer.h"

#include <errno.h>

static bool gpu_pointer_is_known(const struct gpu *g, cu_ptr at)
{
    for (unsigned i = 0; i < GPU_KNOWN; i++)
        if (at - g->known[i].at < g->known[i].bytes)
            return true;
    return false;
}

/* The context is current. Pinned memory of the host is taken too: the GPU reads it in place. */
static int gpu_pointer_look_up(struct gpu *g, cu_ptr at, const char *name, struct errmsg *e)
{
    const struct cuda_driver *d = g->driver;
    struct gpu_memory range = {0};
    int type = 0, device = -1;

    if (d->pointer_attribute(&type, CU_POINTER_MEMORY_TYPE, at) != CU_SUCCESS)
        return fail(e, -EINVAL, "%s is not memory of the GPU: this client takes device pointers", name);
    if (type != CU_MEMORY_DEVICE)
        return 0;
    if (d->pointer_attribute(&device, CU_POINTER_DEVICE, at) == CU_SUCCESS && device != g->device.ordinal)
        return fail(e, -EINVAL, "%s is memory of GPU %d, and this client is on GPU %d, %s", name, device,
                    g->device.ordinal, g->uuid);

    if (d->pointer_attribute(&range.at, CU_POINTER_RANGE_START, at) == CU_SUCCESS &&
        d->pointer_attribute(&range.bytes, CU_POINTER_RANGE_BYTES, at) == CU_SUCCESS)
        g->known[g->next_known++ % GPU_KNOWN] = range;
    return 0;
}

int gpu_check_pointer(struct gpu *g, const void *at, const char *name, struct errmsg *e)
{
    int r;

    if (gpu_pointer_is_known(g, (cu_ptr) (uintptr_t) at))
        return 0;

    r = gpu_enter(g, e);
    if (r < 0)
        return r;
    r = gpu_pointer_look_up(g, (cu_ptr) (uintptr_t) at, name, e);
    cuda_space_leave(g->space);
    return r;
}
