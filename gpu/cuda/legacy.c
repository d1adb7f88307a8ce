/* Shares memory of cuMemAlloc() and cudaMalloc() with other processes, for engines that allocate their own
 * memory: the older interface of the driver. A handle of 64 bytes names a whole allocation of the process
 * that made it, and is useless after that process has ended. */
#include <errno.h>

#include "base/errmsg.h"
#include "gpu/cuda/extent.h"

static int legacy_check_allocation(const struct cuda_driver *d, cu_ptr at, size_t bytes, struct errmsg *e)
{
    cu_ptr base = 0;
    size_t all = 0;
    cu_result r = d->address_range(&base, &all, at);

    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "the address is no GPU memory");
    if (base != at || all != bytes)
        return fail(e, -EINVAL,
                    "%zu bytes at offset %zu of an allocation of %zu bytes: only a whole allocation can be "
                    "shared",
                    bytes, (size_t) (at - base), all);
    if (bytes % CUDA_LEGACY_UNIT != 0)
        return fail(e, -EINVAL,
                    "an allocation of %zu bytes may share memory with others: share multiples of %zu", bytes,
                    CUDA_LEGACY_UNIT);

    return 0;
}

/* Memory of cuMemCreate(), of stream-ordered pools and of other processes has no such handle. */
static int legacy_check_kind(const struct cuda_driver *d, cu_device device, cu_ptr at, struct errmsg *e)
{
    int capable = 0, on = -1;
    cu_result r = d->pointer_attribute(&capable, CU_POINTER_LEGACY_IPC, at);

    if (r == CU_SUCCESS && capable)
        r = d->pointer_attribute(&on, CU_POINTER_DEVICE, at);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot query the kind of this GPU memory");
    if (!capable)
        return fail(e, -EINVAL,
                    "GPU memory of this kind cannot be shared by a handle: allocate it with cudaMalloc() or "
                    "cuMemAlloc()");

    return on == device ? 0 : fail(e, -EINVAL, "the memory is on device %d, not on device %d", on, device);
}

int cuda_legacy_export(struct cuda_space *s, cu_ptr at, size_t bytes, struct cu_ipc_mem_handle *ret,
                       struct errmsg *e)
{
    const struct cuda_driver *d = cuda_space_driver(s);
    struct cu_ipc_mem_handle handle;
    int r = cuda_space_enter(s, e);

    if (r < 0)
        return r;

    r = legacy_check_allocation(d, at, bytes, e);
    if (r == 0)
        r = legacy_check_kind(d, cuda_space_device(s)->ordinal, at, e);
    if (r == 0) {
        cu_result result = d->ipc_export(&handle, at);

        r = result == CU_SUCCESS ? 0 : cuda_fail(d, result, e, "cannot make a handle of GPU memory");
    }

    cuda_space_leave(s);
    if (r == 0)
        *ret = handle;
    return r;
}
