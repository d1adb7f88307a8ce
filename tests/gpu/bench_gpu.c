/* See bench_gpu.h. */
#include "tests/gpu/bench_gpu.h"

#include <errno.h>

#include "base/errmsg.h"

enum { ALLOCATIONS_MAX = sizeof(((struct bench_gpu *) 0)->allocations) / sizeof(cu_ptr) };

static int make_events(struct bench_gpu *g, struct errmsg *e)
{
    cu_result r =
        g->driver->device_attribute(&g->n_multiprocessors, CU_ATTRIBUTE_MULTIPROCESSORS, g->device.ordinal);

    if (r == CU_SUCCESS)
        r = g->driver->event_create(&g->begin, 0);
    if (r == CU_SUCCESS)
        r = g->driver->event_create(&g->end, 0);
    return r == CU_SUCCESS ? 0 : cuda_fail(g->driver, r, e, "cannot prepare measuring");
}

int bench_gpu_open(struct bench_gpu *g, struct errmsg *e)
{
    int r;

    *g = (struct bench_gpu){0};
    if ((r = cuda_driver_open(&g->driver, e)) < 0 ||
        (r = cuda_device_find(g->driver, NULL, &g->device, e)) < 0 ||
        (r = cuda_space_new(g->driver, &g->device, g->device.granularity, &g->space, e)) < 0 ||
        (r = cuda_kernels_new(g->space, &g->kernels, e)) < 0 ||
        (r = cuda_f16_new(g->space, &g->f16, e)) < 0 || (r = cuda_space_enter(g->space, e)) < 0)
        return r;
    r = make_events(g, e);
    cuda_space_leave(g->space);
    return r;
}

void bench_gpu_close(struct bench_gpu *g)
{
    if (g->space && cuda_space_enter(g->space, NULL) == 0) {
        if (g->begin)
            (void) g->driver->event_destroy(g->begin);
        if (g->end)
            (void) g->driver->event_destroy(g->end);
        cuda_space_leave(g->space);
        bench_gpu_release(g, 0);
    }
    g->f16 = cuda_f16_free(g->f16);
    g->kernels = cuda_kernels_free(g->kernels);
    g->space = cuda_space_free(g->space);
    g->driver = cuda_driver_close(g->driver);
}

/* ---- memory ---- */

int bench_gpu_put(struct bench_gpu *g, const void *from, size_t bytes, cu_ptr *ret_at, struct errmsg *e)
{
    cu_result result;
    cu_ptr at;
    int r;

    if (g->n_allocations == ALLOCATIONS_MAX)
        return fail(e, -ENOSPC, "the bench needs more than %d allocations on the GPU", ALLOCATIONS_MAX);

    r = cuda_space_enter(g->space, e);
    if (r < 0)
        return r;

    result = g->driver->mem_alloc(&at, bytes);
    if (result == CU_SUCCESS)
        g->allocations[g->n_allocations++] = at;
    if (result == CU_SUCCESS && from)
        result = g->driver->copy_to_device(at, from, bytes);
    cuda_space_leave(g->space);
    if (result != CU_SUCCESS)
        return cuda_fail(g->driver, result, e, "cannot put data on the GPU");

    *ret_at = at;
    return 0;
}

int bench_gpu_get(struct bench_gpu *g, void *to, cu_ptr from, size_t bytes, struct errmsg *e)
{
    cu_result result;
    int r = cuda_space_enter(g->space, e);

    if (r < 0)
        return r;

    result = g->driver->copy_to_host(to, from, bytes);
    cuda_space_leave(g->space);
    return result == CU_SUCCESS ? 0 : cuda_fail(g->driver, result, e, "cannot read data from the GPU");
}

int bench_gpu_fill(struct bench_gpu *g, cu_ptr at, size_t bytes, const void *pattern, size_t pattern_bytes,
                   struct errmsg *e)
{
    cu_result result = CU_SUCCESS;
    int r = cuda_space_enter(g->space, e);

    if (r < 0)
        return r;

    for (size_t done = 0; done < bytes && result == CU_SUCCESS; done += pattern_bytes)
        result = g->driver->copy_to_device(at + done, pattern,
                                           bytes - done < pattern_bytes ? bytes - done : pattern_bytes);
    cuda_space_leave(g->space);
    return result == CU_SUCCESS ? 0 : cuda_fail(g->driver, result, e, "cannot fill memory of the GPU");
}

void bench_gpu_release(struct bench_gpu *g, size_t n)
{
    if (cuda_space_enter(g->space, NULL) < 0)
        return;
    while (g->n_allocations > n)
        (void) g->driver->mem_free(g->allocations[--g->n_allocations]);
    cuda_space_leave(g->space);
}

/* ---- time ---- */

int bench_gpu_time(struct bench_gpu *g, bench_call call, const void *arg, size_t n, double *ret_seconds,
                   struct errmsg *e)
{
    const struct cuda_driver *d = g->driver;
    float milliseconds = 0;
    cu_result result;
    int r = cuda_space_enter(g->space, e);

    if (r < 0)
        return r;

    result = d->event_record(g->begin, NULL);
    for (size_t i = 0; i < n && r == 0 && result == CU_SUCCESS; i++)
        r = call(arg, i, e);
    if (r == 0 && result == CU_SUCCESS)
        result = d->event_record(g->end, NULL);
    if (r == 0 && result == CU_SUCCESS)
        result = d->event_synchronize(g->end);
    if (r == 0 && result == CU_SUCCESS)
        result = d->event_elapsed(&milliseconds, g->begin, g->end);
    cuda_space_leave(g->space);
    if (r < 0)
        return r;
    if (result != CU_SUCCESS)
        return cuda_fail(d, result, e, "a measured kernel failed");

    *ret_seconds = (double) milliseconds * 1e-3 / (double) n;
    return 0;
}
