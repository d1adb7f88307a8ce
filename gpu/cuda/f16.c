/* Launching the binary16 baseline; see f16.h. */
#include "gpu/cuda/f16.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/module.h"

enum { F16_64, F16_128, F16_256, F16_MERGE, F16_KERNELS };

struct cuda_f16 {
    struct cuda_module module;
    struct cuda_kernel kernels[F16_KERNELS];
};

struct cuda_f16 *cuda_f16_free(struct cuda_f16 *f)
{
    if (!f)
        return NULL;
    cuda_module_unload(&f->module);
    free(f);
    return NULL;
}

int cuda_f16_new(struct cuda_space *s, struct cuda_f16 **ret_f16, struct errmsg *e)
{
    _cleanup_(cuda_f16_freep) struct cuda_f16 *f = calloc(1, sizeof(*f));
    int r;

    if (!f)
        return fail(e, -ENOMEM, "out of memory");
    f->kernels[F16_64].name = "kvc_f16_64";
    f->kernels[F16_128].name = "kvc_f16_128";
    f->kernels[F16_256].name = "kvc_f16_256";
    f->kernels[F16_MERGE].name = "kvc_f16_merge";
    r = cuda_module_load(s, &cuda_image_f16, f->kernels, F16_KERNELS, &f->module, e);
    if (r < 0)
        return r;
    *ret_f16 = take_ptr(f);
    return 0;
}

int cuda_f16_attend(struct cuda_f16 *f, const struct f16_attend *shape, cu_ptr plan, unsigned n_seqs, cu_stream stream,
                    struct errmsg *e)
{
    struct cuda_grid attend = { shape->n_kv_heads, shape->n_splits, n_seqs }, merge = { shape->group, shape->n_kv_heads, n_seqs };
    int kernel = shape->d == 64 ? F16_64 : shape->d == 128 ? F16_128 : shape->d == 256 ? F16_256 : -1, r;

    if (kernel < 0 || shape->group > F16_GROUP_MAX)
        return fail(e, -EOPNOTSUPP, "the binary16 baseline takes dimensions 64, 128 and 256 and up to %d query heads per KV "
                    "head, not %u and %u", F16_GROUP_MAX, shape->d, shape->group);
    r = cuda_launch(f->module.space, &f->kernels[kernel], attend, F16_THREADS, 0, plan, stream, e);
    if (r < 0)
        return r;
    return cuda_launch(f->module.space, &f->kernels[F16_MERGE], merge, F16_THREADS, 0, plan, stream, e);
}
