/* Opening a GPU, waiting for it, losing it; see gpu.h. And what the public interface says of it. */
#include "client/gpu/gpu.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"

/* ---- opening ---- */

struct gpu *gpu_close(struct gpu *g)
{
    if (!g)
        return NULL;
    if (g->kernels)
        (void) gpu_quiesce(g);
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
                           e); /* for all that it could map, with gaps */
    if (r == 0)
        r = cuda_kernels_new(g->space, &g->kernels, e);
    if (r < 0)
        return r;
    cuda_uuid_format(&g->device.uuid, g->uuid);
    *ret = take_ptr(g);
    return 0;
}

/* ---- loss ---- */

int gpu_check(const struct gpu *g, struct errmsg *e)
{
    return g->lost ? fail(e, -EIO, "%s", g->why_lost.text) : 0;
}

int gpu_result(struct gpu *g, int r, struct errmsg *e)
{
    if (r == -EIO && !g->lost) {
        g->lost = true;
        (void) fail(&g->why_lost, r, "this client has lost its GPU: %s",
                    e && e->text[0] ? e->text : "the driver gave up");
    }
    return r;
}

int gpu_cu_result(struct gpu *g, cu_result result, struct errmsg *e, const char *what)
{
    struct errmsg local;

    if (result == CU_SUCCESS)
        return 0;
    if (!e)
        e = &local;
    return gpu_result(g, cuda_fail(g->driver, result, e, what), e);
}

int gpu_enter(struct gpu *g, struct errmsg *e)
{
    int r = gpu_check(g, e);

    return r < 0 ? r : gpu_result(g, cuda_space_enter(g->space, e), e);
}

/* ---- the stream ---- */

bool gpu_is_capturing(struct gpu *g)
{
    int status = CU_CAPTURE_NONE;
    cu_result r;

    if (gpu_enter(g, NULL) < 0)
        return false;
    r = g->driver->stream_is_capturing(g->stream, &status);
    cuda_space_leave(g->space);
    return r == CU_CAPTURE_IMPLICIT ||
           status != CU_CAPTURE_NONE; /* the first: the default stream would end another's capture */
}

int gpu_check_not_capturing(struct gpu *g, struct errmsg *e)
{
    int r = gpu_check(g, e);

    if (r == 0 && gpu_is_capturing(g))
        return fail(e, -EBUSY,
                    "the stream is being captured: this would have to wait for it, or to allocate");
    return r;
}

int gpu_synchronize(struct gpu *g, struct errmsg *e)
{
    int r = gpu_check_not_capturing(g, e);

    if (r == 0)
        r = gpu_enter(g, e);
    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->stream_synchronize(g->stream), e, "cannot wait for the GPU");
    cuda_space_leave(g->space);
    if (r == 0)
        gpu_trim(g, GPU_CACHED_BYTES);
    return r;
}

bool gpu_quiesce(struct gpu *g)
{
    cu_result r;

    if (gpu_synchronize(g, NULL) == 0)
        return true;
    if (gpu_check_not_capturing(g, NULL) < 0 || gpu_enter(g, NULL) < 0)
        return false;
    r = g->driver->context_synchronize();
    cuda_space_leave(g->space);
    return gpu_cu_result(g, r, NULL, "cannot wait for the GPU") == 0;
}

static bool gpu_stream_is_capturing(struct gpu *g, cu_stream stream)
{
    cu_stream now = g->stream;
    bool yes;

    g->stream = stream;
    yes = gpu_is_capturing(g);
    g->stream = now;
    return yes;
}

int gpu_set_stream(struct gpu *g, cu_stream stream, struct errmsg *e)
{
    int r = gpu_synchronize(g, e);

    if (r == 0 && gpu_stream_is_capturing(g, stream))
        return fail(e, -EBUSY, "the new stream is being captured: set it before");
    if (r == 0)
        g->stream = stream;
    return r;
}
