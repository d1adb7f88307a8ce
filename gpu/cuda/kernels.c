/* Loading and launching; see kernels.h. */
#include "gpu/cuda/kernels.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/images.h"
#include "gpu/cuda/plan.h"

#define SHARED_BYTES_FREE ((size_t) 48 << 10) /* more must be asked for, once per function */

enum { MODULES = 2 };

enum kernel { ATTEND, MERGE, ENCODE_KEYS, ENCODE_VALUES, DECODE, N_KERNELS };

static const struct {
    const char *name;
    unsigned module;
} kernels[N_KERNELS] = {
    [ATTEND] = { "kvc_attend", 0 },
    [MERGE] = { "kvc_merge", 0 },
    [ENCODE_KEYS] = { "kvc_encode_keys", 1 },
    [ENCODE_VALUES] = { "kvc_encode_values", 1 },
    [DECODE] = { "kvc_decode", 1 },
};

struct cuda_kernels {
    struct cuda_space *space;
    cu_module modules[MODULES];
    cu_function functions[N_KERNELS];
    size_t shared_bytes[N_KERNELS]; /* that the function may use */
};

struct cuda_kernels *cuda_kernels_free(struct cuda_kernels *k)
{
    if (!k)
        return NULL;
    if (cuda_space_enter(k->space, NULL) == 0) {
        for (unsigned i = 0; i < MODULES; i++)
            if (k->modules[i])
                (void) cuda_space_driver(k->space)->module_unload(k->modules[i]);
        cuda_space_leave(k->space);
    }
    free(k);
    return NULL;
}

static int load(struct cuda_kernels *k, struct errmsg *e)
{
    const struct cuda_driver *d = cuda_space_driver(k->space);
    const struct cuda_image *images[MODULES] = { &cuda_image_attend, &cuda_image_codec };

    for (unsigned i = 0; i < MODULES; i++) {
        cu_result r = d->module_load(&k->modules[i], images[i]->data);

        if (r != CU_SUCCESS) {
            k->modules[i] = NULL;
            return cuda_fail(d, r, e, "cannot load the GPU kernels");
        }
    }
    for (unsigned i = 0; i < N_KERNELS; i++) {
        cu_result r = d->module_function(&k->functions[i], k->modules[kernels[i].module], kernels[i].name);

        if (r != CU_SUCCESS)
            return cuda_fail(d, r, e, kernels[i].name);
        k->shared_bytes[i] = SHARED_BYTES_FREE;
    }
    return 0;
}

int cuda_kernels_new(struct cuda_space *s, struct cuda_kernels **ret_kernels, struct errmsg *e)
{
    _cleanup_(cuda_kernels_freep) struct cuda_kernels *k = NULL;
    int r;

    if (cuda_image_attend.bytes == 0)
        return fail(e, -EOPNOTSUPP, "this build has no GPU kernels: build it where nvcc is installed");
    k = calloc(1, sizeof(*k));
    if (!k)
        return fail(e, -ENOMEM, "out of memory");
    k->space = s;
    r = cuda_space_enter(s, e);
    if (r < 0)
        return r;
    r = load(k, e);
    cuda_space_leave(s);
    if (r < 0)
        return r;
    *ret_kernels = take_ptr(k);
    return 0;
}

/* ---- launching ------------------------------------------------------------------------------------------------------- */

struct grid {
    unsigned x, y, z;
};

/* In the space's context. */
static int launch(struct cuda_kernels *k, enum kernel kernel, struct grid g, size_t shared_bytes, cu_ptr plan,
                  cu_stream stream, struct errmsg *e)
{
    const struct cuda_driver *d = cuda_space_driver(k->space);
    void *arguments[] = { &plan };
    cu_result r = CU_SUCCESS;

    if (shared_bytes > k->shared_bytes[kernel])
        r = d->function_set(k->functions[kernel], CU_FUNCTION_MAX_DYNAMIC_SHARED, (int) shared_bytes);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "the GPU has too little shared memory for this table");
    if (shared_bytes > k->shared_bytes[kernel])
        k->shared_bytes[kernel] = shared_bytes;
    r = d->launch(k->functions[kernel], g.x, g.y, g.z, PLAN_THREADS, 1, 1, (unsigned) shared_bytes, stream, arguments, NULL);
    return r == CU_SUCCESS ? 0 : cuda_fail(d, r, e, kernels[kernel].name);
}

/* Two kernels after each other; the second one's grid x is 0 if there is none. */
static int launch_both(struct cuda_kernels *k, const enum kernel which[2], const struct grid grids[2],
                       const size_t shared_bytes[2], cu_ptr plan, cu_stream stream, struct errmsg *e)
{
    int r = cuda_space_enter(k->space, e);

    if (r < 0)
        return r;
    for (unsigned i = 0; i < 2 && r == 0 && grids[i].x > 0; i++)
        r = launch(k, which[i], grids[i], shared_bytes[i], plan, stream, e);
    cuda_space_leave(k->space);
    return r;
}

int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_splits, unsigned n_seqs,
                cu_stream stream, struct errmsg *e)
{
    unsigned n_heads = l->shard.n_heads;

    if (n_seqs == 0)
        return 0;
    return launch_both(k, (enum kernel[]) { ATTEND, MERGE },
                       (struct grid[]) { { n_heads, n_splits, n_seqs }, { geometry_group(&l->table->geometry), n_heads, n_seqs } },
                       (size_t[]) { plan_attend_shared_bytes(l), plan_merge_shared_bytes(l) }, plan, stream, e);
}

int cuda_encode(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_chunks, cu_stream stream,
                struct errmsg *e)
{
    struct grid grid = { l->shard.n_heads, n_chunks, 1 };
    size_t shared_bytes = plan_encode_shared_bytes(l);

    if (n_chunks == 0)
        return 0;
    return launch_both(k, (enum kernel[]) { ENCODE_KEYS, ENCODE_VALUES }, (struct grid[]) { grid, grid },
                       (size_t[]) { shared_bytes, shared_bytes }, plan, stream, e);
}

int cuda_decode(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_pages, cu_stream stream,
                struct errmsg *e)
{
    if (n_pages == 0)
        return 0;
    return launch_both(k, (enum kernel[]) { DECODE, DECODE }, (struct grid[]) { { l->shard.n_heads, n_pages, 1 }, { 0 } },
                       (size_t[]) { 0, 0 }, plan, stream, e);
}
