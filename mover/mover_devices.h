/* The devices that this process has open, by the number that the asker gave them. */
#pragma once

#include <stdint.h>

#include "gpu/cuda/extent.h"
#include "mover/nvml.h"

enum { MOVER_DEVICES_MAX = 17 }; /* numbers of the daemon's: its 0 is the host's memory */

struct mover_device {
    struct cuda_space *space; /* NULL: not open */
    struct cuda_device_info info;
};

struct mover_devices {
    struct cuda_driver *driver; /* NULL: none was needed yet, or there is none */
    struct nvml *nvml;          /* NULL: likewise */
    struct mover_device all[MOVER_DEVICES_MAX];
};

/* Extents must be gone. */
void mover_devices_close(struct mover_devices *d);

/**
 * mover_devices_open() - open a device, and the driver if it is not
 * @uuid:  "" = the first one
 * @bytes: of addresses; more than the device has are as many as it has
 *
 * Return: 0, also for one that is open under that number already; -EINVAL: number or bytes; -EEXIST: another
 * device has that number; else as cuda_driver_open(), cuda_device_find(), cuda_space_new().
 */
int mover_devices_open(struct mover_devices *d, uint32_t number, const char *uuid, uint64_t bytes,
                       struct mover_device **ret_device, struct errmsg *e);

/* Return: 0; -ENODEV: not open. */
int mover_devices_find(struct mover_devices *d, uint32_t number, struct mover_device **ret_device,
                       struct errmsg *e);

/* Return: as nvml_processes(); -EOPNOTSUPP also under MPS as the driver says, and without the library. */
int mover_devices_list_processes(struct mover_devices *d, const struct mover_device *device, uint32_t *pids,
                                 size_t max, size_t *ret_n, struct errmsg *e);

/* Whether an MPS server stands between processes and the device. */
bool mover_devices_is_shared(const struct mover_devices *d, const struct mover_device *device);
