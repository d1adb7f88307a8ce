/* Opens libcuda with dlopen(); see driver.h. */
#include "gpu/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

#define VERSION_MIN 11040 /* the first with cuDeviceGetUuid_v2; sharing by descriptors is older */

struct cuda_driver *cuda_driver_close(struct cuda_driver *d)
{
    if (!d)
        return NULL;
    if (d->library)
        (void) dlclose(d->library);
    free(d);
    return NULL;
}

static int driver_find_calls(struct cuda_driver *d, struct errmsg *e)
{
    struct {
        const char *symbol;
        void *to;
    } calls[] = {
#define CUDA_ENTRY(member, symbol, arguments) {#symbol, &d->member},
        CUDA_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *address = dlsym(d->library, calls[i].symbol);

        if (!address)
            return fail(e, -EOPNOTSUPP,
                        "the NVIDIA driver is too old: its libcuda has no %s; update it, or use the CPU",
                        calls[i].symbol);
        /* POSIX: data and function pointers have the same size */
        memcpy(calls[i].to, &address, sizeof(address));
    }
    return 0;
}

int cuda_driver_open(struct cuda_driver **ret_driver, struct errmsg *e)
{
    _cleanup_(cuda_driver_closep) struct cuda_driver *d = calloc(1, sizeof(*d));
    int n, r;

    if (!d)
        return fail(e, -ENOMEM, "out of memory");

    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->library)
        return fail(e, -EOPNOTSUPP, "there is no usable NVIDIA driver: %s", dlerror());

    r = driver_find_calls(d, e);
    if (r < 0)
        return r;

    r = d->init(0);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot start the NVIDIA driver");

    r = d->driver_version(&d->version);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot query the version of the NVIDIA driver");
    if (d->version < VERSION_MIN)
        return fail(
            e, -EOPNOTSUPP,
            "the NVIDIA driver is for CUDA %d.%d, at least %d.%d is needed; update it, or use the CPU",
            d->version / 1000, d->version % 1000 / 10, VERSION_MIN / 1000, VERSION_MIN % 1000 / 10);

    r = d->device_count(&n);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot count GPUs");
    if (n < 1)
        return fail(e, -ENODEV, "the NVIDIA driver shows this process no GPU (is CUDA_VISIBLE_DEVICES set?)");

    *ret_driver = take_ptr(d);
    return 0;
}
