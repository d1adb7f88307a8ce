/* See gpu_angles.h. */
#include "client/gpu/gpu_angles.h"

#include <errno.h>
#include <stdlib.h>

#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "gpu/page_layout.h"
#include "gpu/rope.h"

enum { RUN_BLOCKS = 16 }; /* in one copy */

static size_t gpu_angles_block_floats(const struct geometry *g)
{
    return (size_t) 2 * CHUNK_TOKENS * (g->n_rot / 2);
}

static int gpu_angles_init(struct gpu *g, struct gpu_angles *a, const struct geometry *geometry,
                           struct errmsg *e)
{
    uint32_t n = a->n_blocks > 0 ? a->n_blocks : GPU_ANGLE_BLOCKS;
    int r;

    if (a->held)
        return 0;

    a->held = calloc(n, sizeof(*a->held));
    a->launches = calloc(n, sizeof(*a->launches));
    if (!a->held || !a->launches)
        r = fail(e, -ENOMEM, "out of memory for RoPE's angles");
    else
        r = gpu_alloc(g, n * gpu_angles_block_floats(geometry) * sizeof(float), &a->memory, e);
    if (r < 0) {
        free(a->held);
        free(a->launches);
        a->held = a->launches = NULL;
        return r;
    }

    a->n_blocks = n;
    a->launch = 1;
    return 0;
}

void gpu_angles_deinit(struct gpu *g, struct gpu_angles *a)
{
    gpu_free(g, &a->memory);
    free(a->held);
    free(a->launches);
    *a = (struct gpu_angles){.n_blocks = 0};
}

void gpu_angles_next_launch(struct gpu_angles *a)
{
    a->launch++;
}

size_t gpu_angles_most(const struct gpu_angles *a)
{
    return (size_t) ((a->n_blocks > 0 ? a->n_blocks : GPU_ANGLE_BLOCKS) - 1) * CHUNK_TOKENS;
}

struct launch_angles gpu_angles_of(const struct gpu_angles *a)
{
    return (struct launch_angles){.blocks = (const float *) (uintptr_t) a->memory.at,
                                  .n_blocks = a->n_blocks};
}

/* Copies @n blocks of positions from @block on, which are neighbours in the memory too. */
static int gpu_angles_write(struct gpu *g, struct gpu_angles *a, const struct geometry *geometry,
                            uint64_t block, size_t n, struct errmsg *e)
{
    size_t floats = gpu_angles_block_floats(geometry);
    struct gpu_copy *c;
    float *at;
    int r = gpu_ring_take(g, n * floats * sizeof(float), &c, e);

    if (r < 0)
        return r;

    at = gpu_ring_at(g, c);
    for (size_t i = 0; i < n; i++, at += floats)
        rope_rows(geometry, (size_t) (block + i) * CHUNK_TOKENS, CHUNK_TOKENS, at, at + floats / 2);
    r = gpu_ring_write(g, c, a->memory.at + block % a->n_blocks * floats * sizeof(float), e);
    for (size_t i = 0; i < n; i++)
        a->held[(block + i) % a->n_blocks] = r == 0 ? block + i + 1 : 0;
    return r;
}

/* Blocks from @block on that are to be copied together. */
static size_t gpu_angles_count_run(const struct gpu_angles *a, uint64_t block, uint64_t end)
{
    size_t n = 1;

    while (n < RUN_BLOCKS && block + n < end && (block + n) % a->n_blocks != 0 &&
           a->held[(block + n) % a->n_blocks] != block + n + 1 &&
           a->launches[(block + n) % a->n_blocks] != a->launch)
        n++;
    return n;
}

int gpu_angles_cover(struct gpu *g, struct gpu_angles *a, const struct geometry *geometry, size_t first,
                     size_t n, struct errmsg *e)
{
    uint64_t block = first / CHUNK_TOKENS, end = (first + n + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    int r = geometry->n_rot > 0 ? gpu_angles_init(g, a, geometry, e) : 0;

    if (geometry->n_rot == 0)
        return 0;
    while (r == 0 && block < end) {
        size_t at = block % a->n_blocks, run = 1;

        if (a->held[at] != block + 1) {
            if (a->launches[at] == a->launch)
                return -EAGAIN;
            run = gpu_angles_count_run(a, block, end);
            r = gpu_angles_write(g, a, geometry, block, run, e);
        }
        for (size_t i = 0; i < run; i++)
            a->launches[(block + i) % a->n_blocks] = a->launch;
        block += run;
    }
    return r;
}
