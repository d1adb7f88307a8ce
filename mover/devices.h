/* The devices that this process has open, by the number that the asker gave them. */
#pragma once

#include <stdint.h>

#include "gpu/cuda/extent.h"
#include "mover/nvml.h"

enum { DEVICES_MAX = 17 }; /* numbers of the daemon's: its 0 is the host's memory */

struct device {
    struct cuda_space *space; /* NULL: not open */
    struct cuda_device_info info;
};

struct devices {
    struct cuda_driver *driver; /* NULL: none was needed yet, or there is none */
    struct nvml *nvml;          /* NULL: likewise */
    struct device all[DEVICES_MAX];
};

/* Extents must be gone. */
void devices_close(struct devices *d);

/**
 * devices_open() - open a device, and the driver if it is not
 * @uuid:  "" = the first one
 * @bytes: of addresses; more than the device has are as many as it has
 *
 * Return: 0, also for one that is open under that number already; -EINVAL: number or bytes; -EEXIST: another
 * device has that number; else as cuda_driver_open(), cuda_device_find(), cuda_space_new().
 */
int devices_open(struct devices *d, uint32_t number, const char *uuid, uint64_t bytes,
                 struct device **ret_device, struct errmsg *e);

/* Return: 0; -ENODEV: not open. */
int devices_find(struct devices *d, uint32_t number, struct device **ret_device, struct errmsg *e);

/* Return: as nvml_processes(); -EOPNOTSUPP also under MPS as the driver says, and without the library. */
int devices_list_processes(struct devices *d, const struct device *device, uint32_t *pids, size_t max,
                           size_t *ret_n, struct errmsg *e);

/* Whether an MPS server stands between processes and the device. */
bool devices_is_shared(const struct devices *d, const struct device *device);
