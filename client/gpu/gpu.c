/* See gpu.h. */
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"

#include <errno.h>

/* ---- loss ---- */

int gpu_check_usable(const struct gpu *g, struct errmsg *e)
{
    return g->lost ? fail(e, -EIO, "%s", g->why_lost.text) : 0;
}

int gpu_result(struct gpu *g, int r, struct errmsg *e)
{
    if (r == -EIO && !g->lost) {
        g->lost = true;
        (void) fail(&g->why_lost, r, "this client has lost its GPU: %s",
                    e && e->text[0] ? e->text : "the driver reported an error");
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
    int r = gpu_check_usable(g, e);

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

    /* CU_CAPTURE_IMPLICIT: work on the default stream would end the capture of another stream */
    return r == CU_CAPTURE_IMPLICIT || status != CU_CAPTURE_NONE;
}

int gpu_check_not_capturing(struct gpu *g, struct errmsg *e)
{
    int r = gpu_check_usable(g, e);

    if (r == 0 && gpu_is_capturing(g))
        return fail(e, -EBUSY,
                    "the stream is being captured: this call would wait for it, or allocate memory");
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
        return fail(e, -EBUSY, "the new stream is being captured: set it before the capture begins");
    if (r == 0)
        g->stream = stream;
    return r;
}
