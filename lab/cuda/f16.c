/* Launches the binary16 baseline; see f16.h. */
#include "lab/cuda/f16.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/module.h"

enum { F16_64, F16_128, F16_256, F16_MERGE, F16_KERNELS };

enum {
#define KERNEL_NUMBER(kernel, parameters) number_of_##kernel,
    F16_KERNELS(KERNEL_NUMBER)
#undef KERNEL_NUMBER
        N_KERNELS
};

struct cuda_f16 {
    struct cuda_module module;
    struct cuda_kernel kernels[N_KERNELS];
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
#define NAME_KERNEL(kernel, parameters) f->kernels[number_of_##kernel].name = #kernel;
    F16_KERNELS(NAME_KERNEL)
#undef NAME_KERNEL
    r = cuda_module_load(s, &cuda_image_f16, f->kernels, N_KERNELS, &f->module, e);
    if (r < 0)
        return r;

    *ret_f16 = take_ptr(f);
    return 0;
}

/* The number of the kernel for head dimension @d; -1: there is none. */
static int f16_kernel_of(uint32_t d)
{
    switch (d) {
    case 64:
        return number_of_kvc_f16_64;
    case 128:
        return number_of_kvc_f16_128;
    case 256:
        return number_of_kvc_f16_256;
    default:
        return -1;
    }
}

int cuda_f16_attend(struct cuda_f16 *f, const struct f16_attend *a, unsigned n_seqs, cu_stream stream,
                    struct errmsg *e)
{
    struct cuda_grid attend = {a->n_kv_heads, a->n_splits, n_seqs}, merge = {a->group, a->n_kv_heads, n_seqs};
    int kernel = f16_kernel_of(a->d), r;

    if (kernel < 0 || a->group > F16_GROUP_MAX)
        return fail(e, -EOPNOTSUPP,
                    "the binary16 baseline takes dimensions 64, 128 and 256 and up to %d query heads per KV "
                    "head, not %u and %u",
                    F16_GROUP_MAX, a->d, a->group);

    r = cuda_launch(f->module.space, &f->kernels[kernel], attend, F16_THREADS, 0, a, stream, e);
    if (r < 0)
        return r;

    return cuda_launch(f->module.space, &f->kernels[number_of_kvc_f16_merge], merge, F16_THREADS, 0, a,
                       stream, e);
}
