/* See end.h. */
#include "tests/unit/gpu/cuda/end.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda/device_table.h"
#include "tests/lib/test.h"

bool end_init(struct end *d, size_t extent_bytes)
{
    *d = (struct end){0};
    return cuda_driver_open(&d->driver, &d->e) == 0 &&
           cuda_device_find(d->driver, NULL, &d->device, &d->e) == 0 &&
           cuda_space_new(d->driver, &d->device, extent_bytes, &d->space, &d->e) == 0 &&
           cuda_kernels_new(d->space, &d->kernels, &d->e) == 0;
}

bool end_deinit(struct end *d)
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

void end_ok(const struct end *d, int r)
{
    if (r == 0)
        return;
    printf("    %s\n", d->e.text);
    abort();
}

void end_cu_ok(struct end *d, cu_result r)
{
    if (r != CU_SUCCESS)
        end_ok(d, cuda_fail(d->driver, r, &d->e, "test"));
}

void end_set(struct end *d, cu_ptr to, const void *from, size_t bytes)
{
    end_ok(d, cuda_space_enter(d->space, &d->e));
    end_cu_ok(d, d->driver->copy_to_device(to, from, bytes));
    cuda_space_leave(d->space);
}

cu_ptr end_put(struct end *d, const void *from, size_t bytes)
{
    cu_ptr at;

    assert(d->n_allocations < sizeof(d->allocations) / sizeof(d->allocations[0]));
    end_ok(d, cuda_space_enter(d->space, &d->e));
    end_cu_ok(d, d->driver->mem_alloc(&at, bytes > 0 ? bytes : 1));
    cuda_space_leave(d->space);
    d->allocations[d->n_allocations++] = at;
    if (from && bytes > 0)
        end_set(d, at, from, bytes);
    return at;
}

void end_get(struct end *d, void *to, cu_ptr from, size_t bytes)
{
    end_ok(d, cuda_space_enter(d->space, &d->e));
    end_cu_ok(d, d->driver->copy_to_host(to, from, bytes));
    cuda_space_leave(d->space);
}

cu_ptr end_put_table(struct end *d, const struct page_layout *l)
{
    size_t bytes = device_table_bytes(l);
    void *image = aligned_alloc(64, (bytes + 63) / 64 * 64);
    cu_ptr at = end_put(d, NULL, bytes); /* its pointers are those of its place */

    assert(image);
    device_table_fill(l, image, at);
    end_set(d, at, image, bytes);
    free(image);
    return at;
}
