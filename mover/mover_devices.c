/* See mover_devices.h. */
#include "mover/mover_devices.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"

void mover_devices_close(struct mover_devices *d)
{
    for (size_t i = 0; i < MOVER_DEVICES_MAX; i++)
        d->all[i].space = cuda_space_free(d->all[i].space);
    d->nvml = nvml_close(d->nvml);
    d->driver = cuda_driver_close(d->driver);
}

int mover_devices_find(struct mover_devices *d, uint32_t number, struct mover_device **ret_device,
                       struct errmsg *e)
{
    if (number >= MOVER_DEVICES_MAX || !d->all[number].space)
        return fail(e, -ENODEV, "device %u is not open", number);

    *ret_device = &d->all[number];
    return 0;
}

static int mover_devices_make_space(struct mover_devices *d, const struct cuda_device_info *info,
                                    uint64_t bytes, struct mover_device *device, struct errmsg *e)
{
    struct cuda_space *space = NULL;
    int r;

    if (bytes == 0)
        return fail(e, -EINVAL, "a GPU cannot be opened for extents of 0 bytes");

    r = cuda_space_new(d->driver, info, bytes < info->bytes ? bytes : info->bytes, &space, e);
    if (r < 0)
        return r;

    *device = (struct mover_device){.space = space, .info = *info};
    return 0;
}

int mover_devices_open(struct mover_devices *d, uint32_t number, const char *uuid, uint64_t bytes,
                       struct mover_device **ret_device, struct errmsg *e)
{
    struct cuda_device_info info;
    struct mover_device *device;
    int r;

    if (number >= MOVER_DEVICES_MAX)
        return fail(e, -EINVAL, "device %u: at most %d can be open", number, MOVER_DEVICES_MAX);

    device = &d->all[number];
    if (!d->driver) {
        r = cuda_driver_open(&d->driver, e);
        if (r < 0)
            return r;
    }

    r = cuda_device_find(d->driver, uuid[0] ? uuid : NULL, &info, e);
    if (r < 0)
        return r;
    if (device->space && uuid[0] && memcmp(&info.uuid, &device->info.uuid, sizeof(info.uuid)) != 0)
        return fail(e, -EEXIST, "device %u is open already: it is %s, another GPU", number,
                    device->info.name);

    if (!device->space) {
        r = mover_devices_make_space(d, &info, bytes, device, e);
        if (r < 0)
            return r;
    }

    if (!d->nvml)
        (void) nvml_open(&d->nvml, NULL); /* mover_devices_list_processes() reports the error */
    *ret_device = device;
    return 0;
}

bool mover_devices_is_shared(const struct mover_devices *d, const struct mover_device *device)
{
    int mps = 0;

    /* older drivers do not have the attribute */
    if (d->driver->device_attribute(&mps, CU_ATTRIBUTE_MPS, device->info.ordinal) == CU_SUCCESS && mps)
        return true;

    return d->nvml && nvml_has_mps(d->nvml, &device->info.uuid);
}

int mover_devices_list_processes(struct mover_devices *d, const struct mover_device *device, uint32_t *pids,
                                 size_t max, size_t *ret_n, struct errmsg *e)
{
    if (!d->nvml) {
        int r = nvml_open(&d->nvml, e);

        if (r < 0)
            return r;
    }

    if (mover_devices_is_shared(d, device))
        return fail(e, -EOPNOTSUPP,
                    "processes on a GPU cannot be listed: an MPS server runs the work of its clients");

    return nvml_processes(d->nvml, &device->info.uuid, pids, max, ret_n, e);
}
