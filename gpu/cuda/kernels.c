/* Loading and launching; see kernels.h. */
#include "gpu/cuda/kernels.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/module.h"
#include "gpu/cuda/plan.h"

enum { MERGE = PLAN_ATTEND_COUNT, ATTENTION }; /* in the image of attention, behind its kernels, and how many */

enum {
#define KERNEL_NUMBER(kernel, parameters) number_of_##kernel,
    PLAN_CODEC_KERNELS(KERNEL_NUMBER)
#undef KERNEL_NUMBER
    CODEC
};

struct cuda_kernels {
    struct cuda_module attend, codec;
    struct cuda_kernel attention[ATTENTION], coding[CODEC];
};

struct cuda_kernels *cuda_kernels_free(struct cuda_kernels *k)
{
    if (!k)
        return NULL;
    cuda_module_unload(&k->attend);
    cuda_module_unload(&k->codec);
    free(k);
    return NULL;
}

int cuda_kernels_new(struct cuda_space *s, struct cuda_kernels **ret_kernels, struct errmsg *e)
{
    _cleanup_(cuda_kernels_freep) struct cuda_kernels *k = calloc(1, sizeof(*k));
    int r;

    if (!k)
        return fail(e, -ENOMEM, "out of memory");
    *k = (struct cuda_kernels) {
        .attention = {
#define KERNEL_NAME(kernel, n_key_coords, n_columns, n_rows) { .name = #kernel },
            PLAN_ATTEND_KERNELS(KERNEL_NAME)
#undef KERNEL_NAME
            [MERGE] = { .name = "kvc_merge" },
        },
        .coding = {
#define KERNEL_NAME(kernel, parameters) { .name = #kernel },
            PLAN_CODEC_KERNELS(KERNEL_NAME)
#undef KERNEL_NAME
        },
    };
    r = cuda_module_load(s, &cuda_image_attend, k->attention, ATTENTION, &k->attend, e);
    if (r < 0)
        return r;
    r = cuda_module_load(s, &cuda_image_codec, k->coding, CODEC, &k->codec, e);
    if (r < 0)
        return r;
    *ret_kernels = take_ptr(k);
    return 0;
}

/* ---- launching ------------------------------------------------------------------------------------------------------- */

int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, const struct plan_attend *a, unsigned n_items,
                cu_stream stream, struct errmsg *e)
{
    unsigned group = geometry_group(&l->table->geometry);
    struct cuda_grid attend = { l->shard.n_heads * PLAN_TILES(group, a->n_q), a->n_splits, n_items };
    struct cuda_grid merge = { group * a->n_q, l->shard.n_heads, n_items };
    int r;

    assert(n_items <= PLAN_ITEMS_MAX);
    if (n_items == 0 || a->n_q == 0)
        return 0;
    r = cuda_launch(k->attend.space, &k->attention[plan_attend_kernel(l, a->n_q)], attend, PLAN_THREADS,
                    plan_attend_shared_bytes(l), a, stream, e);
    if (r < 0)
        return r;
    return cuda_launch(k->attend.space, &k->attention[MERGE], merge, PLAN_THREADS, plan_merge_shared_bytes(l), a, stream, e);
}

int cuda_encode(struct cuda_kernels *k, const struct page_layout *l, const struct plan_encode *p, unsigned n_chunks,
                cu_stream stream, struct errmsg *e)
{
    struct cuda_grid grid = { l->shard.n_heads, n_chunks, 1 };
    size_t shared_bytes = plan_encode_shared_bytes(l);
    int r;

    if (n_chunks == 0)
        return 0;
    r = cuda_launch(k->codec.space, &k->coding[number_of_kvc_encode_keys], grid, PLAN_THREADS, shared_bytes, p, stream, e);
    if (r < 0)
        return r;
    return cuda_launch(k->codec.space, &k->coding[number_of_kvc_encode_values], grid, PLAN_THREADS, shared_bytes, p, stream, e);
}

int cuda_decode(struct cuda_kernels *k, const struct page_layout *l, const struct plan_decode *p, unsigned n_pages,
                cu_stream stream, struct errmsg *e)
{
    struct cuda_grid grid = { l->shard.n_heads, n_pages, 1 };

    if (n_pages == 0)
        return 0;
    return cuda_launch(k->codec.space, &k->coding[number_of_kvc_decode], grid, PLAN_THREADS, 0, p, stream, e);
}
