/* See module.h. */
#include "gpu/cuda/module.h"

#include <errno.h>

#include "base/errmsg.h"

#define SHARED_BYTES_FREE ((size_t) 48 << 10) /* larger amounts must be requested once per function */

void cuda_module_unload(struct cuda_module *m)
{
    if (m->module && cuda_space_enter(m->space, NULL) == 0) {
        (void) cuda_space_driver(m->space)->module_unload(m->module);
        cuda_space_leave(m->space);
    }
    *m = (struct cuda_module){0};
}

/* The context of the space must be current. */
static int module_find_kernels(const struct cuda_driver *d, cu_module module, struct cuda_kernel *kernels,
                               size_t n, struct errmsg *e)
{
    for (size_t i = 0; i < n; i++) {
        cu_result r = d->module_function(&kernels[i].function, module, kernels[i].name);

        if (r != CU_SUCCESS)
            return cuda_fail(d, r, e, kernels[i].name);

        kernels[i].shared_bytes = SHARED_BYTES_FREE;
    }
    return 0;
}

int cuda_module_load(struct cuda_space *s, const struct cuda_image *image, struct cuda_kernel *kernels,
                     size_t n, struct cuda_module *ret_module, struct errmsg *e)
{
    const struct cuda_driver *d = cuda_space_driver(s);
    struct cuda_module m = {.space = s};
    cu_result result;
    int r;

    r = cuda_space_enter(s, e);
    if (r < 0)
        return r;

    result = d->module_load(&m.module, image->data);
    if (result != CU_SUCCESS) {
        m.module = NULL;
        r = cuda_fail(d, result, e, "cannot load the GPU kernels");
    } else {
        r = module_find_kernels(d, m.module, kernels, n, e);
    }

    cuda_space_leave(s);
    if (r < 0) {
        cuda_module_unload(&m);
        return r;
    }

    *ret_module = m;
    return 0;
}

int cuda_launch(struct cuda_space *s, struct cuda_kernel *kernel, struct cuda_grid g, unsigned n_threads,
                size_t shared_bytes, const void *parameters, cu_stream stream, struct errmsg *e)
{
    const struct cuda_driver *d = cuda_space_driver(s);
    void *arguments[] = {(void *) (uintptr_t) parameters};
    cu_result result = CU_SUCCESS;
    int r = cuda_space_enter(s, e);

    if (r < 0)
        return r;
    if (shared_bytes > kernel->shared_bytes)
        result = d->function_set(kernel->function, CU_FUNCTION_MAX_DYNAMIC_SHARED, (int) shared_bytes);
    if (result != CU_SUCCESS) {
        r = cuda_fail(d, result, e, "the GPU has too little shared memory for this table");
    } else {
        if (shared_bytes > kernel->shared_bytes)
            kernel->shared_bytes = shared_bytes;
        result = d->launch(kernel->function, g.x, g.y, g.z, n_threads, 1, 1, (unsigned) shared_bytes, stream,
                           arguments, NULL);
        r = result == CU_SUCCESS ? 0 : cuda_fail(d, result, e, kernel->name);
    }

    cuda_space_leave(s);
    return r;
}
