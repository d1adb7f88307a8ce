/* See gpu_fixture.h. */
#include "tests/unit/gpu/cuda/gpu_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda/device_table.h"
#include "tests/lib/test.h"

bool gpu_fixture_init(struct gpu_fixture *d, size_t extent_bytes)
{
    *d = (struct gpu_fixture){0};
    return cuda_driver_open(&d->driver, &d->e) == 0 &&
           cuda_device_find(d->driver, NULL, &d->device, &d->e) == 0 &&
           cuda_space_new(d->driver, &d->device, extent_bytes, &d->space, &d->e) == 0 &&
           cuda_kernels_new(d->space, &d->kernels, &d->e) == 0;
}

bool gpu_fixture_deinit(struct gpu_fixture *d)
{
    bool ok = true;

    if (d->space && cuda_space_enter(d->space, &d->e) == 0) {
        for (unsigned i = 0; i < d->n_allocations; i++)
            ok = d->driver->mem_free(d->allocations[i]) == CU_SUCCESS && ok;
        cuda_space_leave(d->space);
    }
    d->kernels = cuda_kernels_free(d->kernels);
    d->space = cuda_space_free(d->space);
    d->driver = cuda_driver_close(d->driver);
    return ok;
}

void gpu_fixture_ok(const struct gpu_fixture *d, int r)
{
    if (r == 0)
        return;
    printf("    %s\n", d->e.text);
    abort();
}

void gpu_fixture_cu_ok(struct gpu_fixture *d, cu_result r)
{
    if (r != CU_SUCCESS)
        gpu_fixture_ok(d, cuda_fail(d->driver, r, &d->e, "test"));
}

void gpu_fixture_set(struct gpu_fixture *d, cu_ptr to, const void *from, size_t bytes)
{
    gpu_fixture_ok(d, cuda_space_enter(d->space, &d->e));
    gpu_fixture_cu_ok(d, d->driver->copy_to_device(to, from, bytes));
    cuda_space_leave(d->space);
}

cu_ptr gpu_fixture_put(struct gpu_fixture *d, const void *from, size_t bytes)
{
    cu_ptr at;

    assert(d->n_allocations < sizeof(d->allocations) / sizeof(d->allocations[0]));
    gpu_fixture_ok(d, cuda_space_enter(d->space, &d->e));
    gpu_fixture_cu_ok(d, d->driver->mem_alloc(&at, bytes > 0 ? bytes : 1));
    cuda_space_leave(d->space);
    d->allocations[d->n_allocations++] = at;
    if (from && bytes > 0)
        gpu_fixture_set(d, at, from, bytes);
    return at;
}

void gpu_fixture_get(struct gpu_fixture *d, void *to, cu_ptr from, size_t bytes)
{
    gpu_fixture_ok(d, cuda_space_enter(d->space, &d->e));
    gpu_fixture_cu_ok(d, d->driver->copy_to_host(to, from, bytes));
    cuda_space_leave(d->space);
}

cu_ptr gpu_fixture_put_table(struct gpu_fixture *d, const struct page_layout *l)
{
    size_t bytes = device_table_bytes(l);
    void *image = aligned_alloc(64, (bytes + 63) / 64 * 64);
    cu_ptr at = gpu_fixture_put(d, NULL, bytes); /* inner pointers are addresses in device memory */

    assert(image);
    device_table_fill(l, image, at);
    gpu_fixture_set(d, at, image, bytes);
    free(image);
    return at;
}
