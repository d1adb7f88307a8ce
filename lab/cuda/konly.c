/* Launches the kernels of packed keys beside binary16 values; see konly.h. */
#include "lab/cuda/konly.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/module.h"
#include "gpu/cuda/device_table.h"

enum { MERGE = KONLY_ATTEND_COUNT, N_KERNELS };

struct cuda_konly {
    struct cuda_module module;
    struct cuda_kernel kernels[N_KERNELS];
};

struct cuda_konly *cuda_konly_free(struct cuda_konly *k)
{
    if (!k)
        return NULL;

    cuda_module_unload(&k->module);
    free(k);
    return NULL;
}

int cuda_konly_new(struct cuda_space *s, struct cuda_konly **ret_konly, struct errmsg *e)
{
    _cleanup_(cuda_konly_freep) struct cuda_konly *k = calloc(1, sizeof(*k));
    int r;

    if (!k)
        return fail(e, -ENOMEM, "out of memory");
#define NAME_KERNEL(kernel, n_key_coords) k->kernels[number_of_##kernel].name = #kernel;
    KONLY_ATTEND_KERNELS(NAME_KERNEL)
#undef NAME_KERNEL
    k->kernels[MERGE].name = "kvc_konly_merge";
    r = cuda_module_load(s, &cuda_image_konly, k->kernels, N_KERNELS, &k->module, e);
    if (r < 0)
        return r;

    *ret_konly = take_ptr(k);
    return 0;
}

unsigned konly_kernel(const struct page_layout *l)
{
    static const uint32_t most[KONLY_ATTEND_COUNT] = {
#define MOST(name, n_key_coords) n_key_coords,
        KONLY_ATTEND_KERNELS(MOST)
#undef MOST
    };
    unsigned i = 0;

    if (l->table->geometry.d != KONLY_D || geometry_group(&l->table->geometry) > KONLY_ROWS)
        return KONLY_ATTEND_COUNT;

    while (i < KONLY_ATTEND_COUNT && device_table_rank_max(l, SIDE_K) > most[i])
        i++;
    return i;
}

size_t konly_shared_bytes(const struct page_layout *l)
{
    struct attend_80_shape s = attend_80_shape(KONLY_D, KONLY_ROWS, device_table_rank_max(l, SIDE_K), 0,
                                               device_table_block_bytes_max(l), 0);

    return konly_values_at(&s) + (size_t) KONLY_VALUE_BYTES;
}

int cuda_konly_attend(struct cuda_konly *k, const struct page_layout *l, const struct konly_attend *a,
                      unsigned n_seqs, cu_stream stream, struct errmsg *e)
{
    unsigned kernel = konly_kernel(l), group = geometry_group(&l->table->geometry);
    struct cuda_grid attend = {l->shard.n_heads, a->attend.n_splits, n_seqs},
                     merge = {group, l->shard.n_heads, n_seqs};
    int r;

    if (kernel == KONLY_ATTEND_COUNT)
        return fail(e, -EOPNOTSUPP,
                    "packed keys beside binary16 values have a kernel for dimension %d, %d query heads per "
                    "KV head and rank %d at most",
                    KONLY_D, KONLY_ROWS, KONLY_D);

    r = cuda_launch(k->module.space, &k->kernels[kernel], attend, LAUNCH_THREADS, konly_shared_bytes(l), a,
                    stream, e);
    if (r < 0)
        return r;

    return cuda_launch(k->module.space, &k->kernels[MERGE], merge, LAUNCH_THREADS, 0, a, stream, e);
}
