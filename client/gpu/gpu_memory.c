/*
 * Device memory in stream order. cuMemFree() waits for the device, so freed memory is kept and used again
 * instead. One stream orders all of a client's work, so freed memory can be allocated again at once.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"

#define PIECE_MIN ((size_t) 256)

/*
 * Sizes are rounded up to an eighth of a power of two, so that the memory of a freed sequence fits the
 * next one, which is a little longer.
 * Return: 0: too large.
 */
static size_t gpu_memory_rounded(size_t bytes)
{
    size_t step = PIECE_MIN, up;

    if (bytes > SIZE_MAX / 2)
        return 0;
    while (step < bytes / 8)
        step *= 2;
    return checked_add(bytes, step - 1, &up) ? up / step * step : 0;
}

static void gpu_memory_free_in_driver(struct gpu *g, const struct gpu_memory *m)
{
    g->n_memories--; /* memory of a lost GPU is freed when the process ends */
    if (cuda_space_enter(g->space, NULL) < 0)
        return;
    (void) gpu_cu_result(g, g->driver->mem_free(m->at), NULL, "cannot free GPU memory");
    cuda_space_leave(g->space);
}

void gpu_trim(struct gpu *g, size_t keep_bytes)
{
    while (g->cached_bytes > keep_bytes) {
        struct gpu_memory *m = &g->cached[0]; /* the memory that was freed first */

        gpu_memory_free_in_driver(g, m);
        g->cached_bytes -= m->bytes;
        memmove(m, m + 1, --g->n_cached * sizeof(*m));
    }
}

static bool gpu_memory_alloc_from_cache(struct gpu *g, size_t bytes, struct gpu_memory *ret)
{
    for (size_t i = g->n_cached; i-- > 0;)
        if (g->cached[i].bytes == bytes) {
            *ret = g->cached[i];
            g->cached_bytes -= bytes;
            memmove(g->cached + i, g->cached + i + 1, (--g->n_cached - i) * sizeof(*g->cached));
            return true;
        }
    return false;
}

static int gpu_memory_alloc_from_driver(struct gpu *g, size_t bytes, struct gpu_memory *ret, struct errmsg *e)
{
    cu_result result;
    cu_ptr at = 0;
    int r = gpu_check_not_capturing(g, e);

    if (r == 0)
        r = gpu_enter(g, e);
    if (r < 0)
        return r;

    result = g->driver->mem_alloc(&at, bytes);
    cuda_space_leave(g->space);
    if (result == CU_OUT_OF_MEMORY)
        return fail(e, -ENOMEM, "the GPU has no %zu bytes of memory left", bytes);
    if (result == CU_SUCCESS)
        *ret = (struct gpu_memory){.at = at, .bytes = bytes};
    return gpu_cu_result(g, result, e, "cannot allocate GPU memory");
}

/* Frees all cached memory in the driver first. */
static int gpu_memory_alloc_after_trim(struct gpu *g, size_t bytes, struct gpu_memory *ret, struct errmsg *e)
{
    int r = gpu_synchronize(g, e);

    if (r < 0)
        return r;

    gpu_trim(g, 0);
    return gpu_memory_alloc_from_driver(g, bytes, ret, e);
}

int gpu_alloc(struct gpu *g, size_t bytes, struct gpu_memory *ret, struct errmsg *e)
{
    size_t up = gpu_memory_rounded(bytes);
    struct gpu_memory *cached;
    int r = gpu_check_usable(g, e);

    if (r < 0)
        return r;
    if (up == 0)
        return fail(e, -ENOMEM, "no GPU has %zu bytes of memory", bytes);
    if (gpu_memory_alloc_from_cache(g, up, ret))
        return 0;

    cached = realloc(g->cached, (g->n_memories + 1) * sizeof(*cached)); /* so that gpu_free() cannot fail */
    if (!cached)
        return fail(e, -ENOMEM, "out of memory");

    g->cached = cached;
    r = gpu_memory_alloc_from_driver(g, up, ret, e);
    if (r == -ENOMEM && g->n_cached > 0) /* cached memory has other sizes */
        r = gpu_memory_alloc_after_trim(g, up, ret, e);
    g->n_memories += r == 0;
    return r;
}

void gpu_free(struct gpu *g, struct gpu_memory *m)
{
    if (m->bytes == 0)
        return;
    assert(g->n_cached < g->n_memories);
    g->cached[g->n_cached++] = *m;
    g->cached_bytes += m->bytes;
    *m = (struct gpu_memory){0};
}

void gpu_free_now(struct gpu *g, struct gpu_memory *m)
{
    if (m->bytes == 0)
        return;
    gpu_memory_free_in_driver(g, m);
    *m = (struct gpu_memory){0};
}

/* ---- the workspace ---- */

static int gpu_memory_grow_workspace(struct gpu *g, size_t bytes, struct errmsg *e)
{
    struct gpu_workspace *w = &g->workspace;
    struct gpu_memory fresh, *kept;
    int r;

    kept = realloc(w->kept, (w->n_kept + 1) * sizeof(*kept));
    if (!kept)
        return fail(e, -ENOMEM, "out of memory");

    w->kept = kept;
    r = gpu_alloc(g, bytes, &fresh, e);
    if (r < 0)
        return r;

    if (w->is_captured)
        kept[w->n_kept++] = w->memory;
    else
        gpu_free(g, &w->memory);
    w->memory = fresh;
    w->is_captured = false;
    return 0;
}

int gpu_workspace_reserve(struct gpu *g, size_t bytes, bool capturing, struct errmsg *e)
{
    if (bytes > g->workspace.memory.bytes) {
        int r;

        if (capturing)
            return fail(e, -EBUSY,
                        "attention needs a workspace of %zu bytes, which cannot be allocated while a graph "
                        "is captured: run this step once before you capture it",
                        bytes);

        r = gpu_memory_grow_workspace(g, bytes, e);
        if (r < 0)
            return r;
    }

    g->workspace.is_captured |= capturing;
    return 0;
}

void gpu_workspace_deinit(struct gpu *g)
{
    struct gpu_workspace *w = &g->workspace;

    gpu_free(g, &w->memory);
    while (w->n_kept > 0)
        gpu_free(g, &w->kept[--w->n_kept]);
    free(w->kept);
    *w = (struct gpu_workspace){.n_kept = 0};
}

/* ---- copies ---- */

int gpu_copy(struct gpu *g, cu_ptr to, cu_ptr from, size_t bytes, struct errmsg *e)
{
    int r = gpu_enter(g, e);

    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->copy_async(to, from, bytes, g->stream), e, "cannot copy GPU memory");
    cuda_space_leave(g->space);
    return r;
}

/*
 * Waits: the driver has read all bytes when its call returns only if it must stage them; a GPU that shares
 * the host's page tables reads them when the copy runs. Short writes that must not wait are parameters of a
 * launch (cuda_write_words()).
 */
int gpu_write(struct gpu *g, cu_ptr to, const void *from, size_t bytes, struct errmsg *e)
{
    int r = gpu_check_not_capturing(g, e);

    if (r == 0)
        r = gpu_enter(g, e);
    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->copy_to_device_async(to, from, bytes, g->stream), e,
                      "cannot write GPU memory");
    cuda_space_leave(g->space);
    return r < 0 ? r : gpu_synchronize(g, e);
}

int gpu_read(struct gpu *g, void *to, cu_ptr from, size_t bytes, struct errmsg *e)
{
    int r = gpu_synchronize(g, e);

    if (r == 0)
        r = gpu_enter(g, e);
    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->copy_to_host(to, from, bytes), e, "cannot read GPU memory");
    cuda_space_leave(g->space);
    return r;
}

/* ---- flags ---- */

static int gpu_memory_add_flag_slab(struct gpu *g, struct errmsg *e)
{
    struct gpu_flag_slab **flags = realloc(g->flags, (g->n_flag_slabs + 1) * sizeof(*flags)), *slab;
    int r;

    if (!flags)
        return fail(e, -ENOMEM, "out of memory");

    g->flags = flags;
    slab = calloc(1, sizeof(*slab));
    if (!slab)
        return fail(e, -ENOMEM, "out of memory");

    r = gpu_alloc(g, sizeof(slab->raised), &slab->memory, e);
    if (r == 0)
        r = gpu_write(g, slab->memory.at, slab->raised, sizeof(slab->raised), e);
    if (r < 0) {
        gpu_free(g, &slab->memory);
        free(slab);
        return r;
    }

    flags[g->n_flag_slabs++] = slab;
    return 0;
}

static uint32_t gpu_memory_find_flag(const struct gpu *g)
{
    for (uint32_t i = 0; i < g->n_flag_slabs * GPU_FLAGS; i++)
        if (!g->flags[i / GPU_FLAGS]->taken[i % GPU_FLAGS])
            return i;
    return UINT32_MAX;
}

int gpu_flag_take(struct gpu *g, uint32_t *ret_flag, struct errmsg *e)
{
    static const uint32_t lowered = 0;
    uint32_t i = gpu_memory_find_flag(g);
    struct gpu_flag_slab *slab;
    int r;

    if (i == UINT32_MAX) {
        r = gpu_memory_add_flag_slab(g, e);
        if (r < 0)
            return r;

        i = gpu_memory_find_flag(g);
    }

    r = cuda_write_words(g->kernels, gpu_flag_address(g, i), &lowered, sizeof(lowered), g->stream, e);
    r = gpu_result(g, r, e);
    if (r < 0)
        return r;

    slab = g->flags[i / GPU_FLAGS];
    slab->taken[i % GPU_FLAGS] = true;
    slab->raised[i % GPU_FLAGS] = 0;
    *ret_flag = i;
    return 0;
}

void gpu_flag_drop(struct gpu *g, uint32_t flag)
{
    g->flags[flag / GPU_FLAGS]->taken[flag % GPU_FLAGS] = false;
}

cu_ptr gpu_flag_address(const struct gpu *g, uint32_t flag)
{
    return g->flags[flag / GPU_FLAGS]->memory.at + flag % GPU_FLAGS * sizeof(uint32_t);
}

int gpu_flags_read(struct gpu *g, struct errmsg *e)
{
    int r = gpu_synchronize(g, e);

    for (size_t i = 0; r == 0 && i < g->n_flag_slabs; i++)
        r = gpu_read(g, g->flags[i]->raised, g->flags[i]->memory.at, sizeof(g->flags[i]->raised), e);
    return r;
}

bool gpu_flag_is_raised(const struct gpu *g, uint32_t flag)
{
    return g->flags[flag / GPU_FLAGS]->raised[flag % GPU_FLAGS] != 0;
}
