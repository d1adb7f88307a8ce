/* Copies, fills and launches of the stand-in driver (devices.c): checks their rules and executes them. */
#include <string.h>

#include "tests/cuda_on_cpu/kernels.h"
#include "tests/standin/standin.h"

cu_result check_ranges(const struct work *w)
{
    cu_result r = CU_SUCCESS;

    if (w->kind == WORK_LAUNCH)
        return current_device() >= 0 ? CU_SUCCESS : CU_INVALID_CONTEXT;
    if (!w->to_host)
        r = check_touch(w->to, w->bytes, CU_ACCESS_READ_WRITE);
    if (r == CU_SUCCESS && w->kind == WORK_COPY && !w->from_host)
        r = check_touch(w->from, w->bytes, CU_ACCESS_READ);
    return r;
}

static cu_result launch(const struct work *w)
{
#ifdef KERNELS_ON_CPU
    on_cpu_launch(w->kernel, w->grid[0], w->grid[1], w->grid[2], w->n_threads, w->shared, w->params);
    return CU_SUCCESS;
#else
    (void) w;
    return CU_NOT_SUPPORTED;
#endif
}

cu_result run_now(const struct work *w)
{
    switch (w->kind) {
    case WORK_COPY:
        memmove((void *) (uintptr_t) w->to, (const void *) (uintptr_t) w->from, w->bytes);
        return CU_SUCCESS;
    case WORK_SET:
        memset((void *) (uintptr_t) w->to, w->value, w->bytes);
        return CU_SUCCESS;
    case WORK_LAUNCH:
        break;
    }
    state.n_launches++;
    return is_wrong(w->kernel) ? run_wrong(launch, w) : launch(w);
}

/* ---- copies and fills ---- */

/* Device memory from the first to the last byte that calls wrote which may return before the bytes arrive:
 * copies from memory of the host that is not pinned, fills. */
static struct {
    cu_ptr first, end;
} arriving;

void all_arrived(void)
{
    arriving.end = 0;
}

bool is_arriving(cu_ptr at, size_t bytes)
{
    return arriving.end > 0 && at < arriving.end && at + bytes > arriving.first;
}

static void note_arriving(const struct work *w)
{
    arriving.first = arriving.end == 0 || w->to < arriving.first ? w->to : arriving.first;
    arriving.end = w->to + w->bytes > arriving.end ? w->to + w->bytes : arriving.end;
}

/* The synchronous calls wait for the default stream, which waits for other streams. */
static cu_result wait_for(const struct work *w)
{
    cu_result r = current_device() >= 0 ? refuse_waits() : CU_INVALID_CONTEXT;

    if (r == CU_SUCCESS)
        r = check_ranges(w);
    if (r != CU_SUCCESS)
        return r;

    all_arrived();
    if (!w->to_host)
        note_arriving(w);
    return run_now(w);
}

API cu_result cuMemcpyDtoH_v2(void *to, cu_ptr from, size_t bytes)
{
    ENTER();
    return wait_for(&(struct work){
        .kind = WORK_COPY, .to = (uintptr_t) to, .to_host = true, .from = from, .bytes = bytes});
}

API cu_result cuMemcpyHtoD_v2(cu_ptr to, const void *from, size_t bytes)
{
    ENTER();
    return wait_for(&(struct work){
        .kind = WORK_COPY, .to = to, .from = (uintptr_t) from, .from_host = true, .bytes = bytes});
}

API cu_result cuMemsetD8_v2(cu_ptr to, unsigned char value, size_t bytes)
{
    ENTER();
    return wait_for(&(struct work){.kind = WORK_SET, .to = to, .value = value, .bytes = bytes});
}

API cu_result cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, cu_stream stream)
{
    ENTER();
    return submit(
        stream, &(struct work){
                    .kind = WORK_COPY, .to = (uintptr_t) to, .to_host = true, .from = from, .bytes = bytes});
}

API cu_result cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t bytes, cu_stream stream)
{
    ENTER();
    return submit(
        stream,
        &(struct work){
            .kind = WORK_COPY, .to = to, .from = (uintptr_t) from, .from_host = true, .bytes = bytes});
}

API cu_result cuMemcpyDtoDAsync_v2(cu_ptr to, cu_ptr from, size_t bytes, cu_stream stream)
{
    ENTER();
    return submit(stream, &(struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
}

API cu_result cuMemsetD8Async(cu_ptr to, unsigned char value, size_t bytes, cu_stream stream)
{
    ENTER();
    return submit(stream, &(struct work){.kind = WORK_SET, .to = to, .value = value, .bytes = bytes});
}
