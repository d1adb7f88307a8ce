/* An image of kernels in the context of a space: finds its functions by name and launches them. For
 * kernels.c and f16.c. */
#pragma once

#include <stddef.h>

#include "gpu/cuda/extent.h"
#include "gpu/cuda/images.h"

/* One kernel. All kernels take one struct of parameters, by value. */
struct cuda_kernel {
    const char *name;
    cu_function function;
    size_t shared_bytes; /* that the function may use */
};

struct cuda_grid {
    unsigned x, y, z;
};

struct cuda_module {
    struct cuda_space *space; /* borrowed */
    cu_module module;         /* NULL: not loaded */
};

/**
 * cuda_module_load() - load an image and find its kernels
 * @kernels: [n] with names; functions are filled in
 *
 * Return: 0; -EOPNOTSUPP: the build has no image, or none for this GPU; else as cuda_fail().
 */
int cuda_module_load(struct cuda_space *s, const struct cuda_image *image, struct cuda_kernel *kernels,
                     size_t n, struct cuda_module *ret_module, struct errmsg *e);

/* Work of its kernels must have ended. Accepts a zeroed module. */
void cuda_module_unload(struct cuda_module *m);

/**
 * cuda_launch() - queue one kernel on @stream
 * @parameters: the kernel's struct; borrowed until this returns, the driver copies it
 *
 * Return: 0; as cuda_fail(), also where the GPU has less shared memory than @shared_bytes.
 */
int cuda_launch(struct cuda_space *s, struct cuda_kernel *kernel, struct cuda_grid g, unsigned n_threads,
                size_t shared_bytes, const void *parameters, cu_stream stream, struct errmsg *e);
