/* Loading and launching; see kernels.h. */
#include "gpu/cuda/kernels.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/module.h"
#include "gpu/cuda/plan.h"

enum { MERGE = PLAN_ATTEND_COUNT, ATTENTION };      /* in the image of attention, behind its kernels, and how many */
enum { ENCODE_KEYS, ENCODE_VALUES, DECODE, CODEC }; /* in the codec's */

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
        .coding = { [ENCODE_KEYS] = { .name = "kvc_encode_keys" }, [ENCODE_VALUES] = { .name = "kvc_encode_values" },
                    [DECODE] = { .name = "kvc_decode" } },
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

int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_splits, unsigned n_q,
                unsigned n_seqs, cu_stream stream, struct errmsg *e)
{
    unsigned group = geometry_group(&l->table->geometry);
    struct cuda_grid attend = { l->shard.n_heads * PLAN_TILES(group, n_q), n_splits, n_seqs };
    struct cuda_grid merge = { group * n_q, l->shard.n_heads, n_seqs };
    int r;

    if (n_seqs == 0 || n_q == 0)
        return 0;
    r = cuda_launch(k->attend.space, &k->attention[plan_attend_kernel(l, n_q)], attend, PLAN_THREADS,
                    plan_attend_shared_bytes(l), plan, stream, e);
    if (r < 0)
        return r;
    return cuda_launch(k->attend.space, &k->attention[MERGE], merge, PLAN_THREADS, plan_merge_shared_bytes(l), plan, stream, e);
}

int cuda_encode(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_chunks, cu_stream stream,
                struct errmsg *e)
{
    struct cuda_grid grid = { l->shard.n_heads, n_chunks, 1 };
    size_t shared_bytes = plan_encode_shared_bytes(l);
    int r = 0;

    for (unsigned i = ENCODE_KEYS; n_chunks > 0 && r == 0 && i <= ENCODE_VALUES; i++)
        r = cuda_launch(k->codec.space, &k->coding[i], grid, PLAN_THREADS, shared_bytes, plan, stream, e);
    return r;
}

int cuda_decode(struct cuda_kernels *k, const struct page_layout *l, cu_ptr plan, unsigned n_pages, cu_stream stream,
                struct errmsg *e)
{
    struct cuda_grid grid = { l->shard.n_heads, n_pages, 1 };

    if (n_pages == 0)
        return 0;
    return cuda_launch(k->codec.space, &k->coding[DECODE], grid, PLAN_THREADS, 0, plan, stream, e);
}
