/*
 * The driver, the management library and the open devices of kvcobra-mover, by the numbers that the daemon
 * gave them. serve.c opens and finds devices; move.c creates extents on one, computes checksums of pages, and
 * copies between extents and files. An extent is mapped during the call only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/extent.h"
#include "mover/nvml.h"

enum { MOVER_DEVICES_MAX = 17 }; /* as in the daemon, whose device 0 is host memory */

struct mover_device {
    struct cuda_space *space; /* NULL: not open */
    struct cuda_device_info info;
};

struct mover_devices {
    struct cuda_driver *driver; /* NULL: not needed yet, or not available */
    struct nvml *nvml;          /* NULL: not needed yet, or not available */
    struct mover_device all[MOVER_DEVICES_MAX];
};

/* All extents must be freed before. */
void mover_devices_close(struct mover_devices *d);

/**
 * mover_devices_open() - open a device, and the driver if it is not
 * @uuid:  "" = the first one
 * @bytes: size of the address space; capped at the memory of the device
 *
 * Return: 0, also if the device is open under that number already; -EINVAL: number or bytes; -EEXIST: the
 * number belongs to another open device; else as cuda_driver_open(), cuda_device_find(), cuda_space_new().
 */
int mover_devices_open(struct mover_devices *d, uint32_t number, const char *uuid, uint64_t bytes,
                       struct mover_device **ret_device, struct errmsg *e);

/* Return: 0; -ENODEV: not open. */
int mover_devices_find(struct mover_devices *d, uint32_t number, struct mover_device **ret_device,
                       struct errmsg *e);

/* Return: as nvml_processes(); -EOPNOTSUPP also if the driver reports MPS, or without the library. */
int mover_devices_list_processes(struct mover_devices *d, const struct mover_device *device, uint32_t *pids,
                                 size_t max, size_t *ret_n, struct errmsg *e);

/* Whether an MPS server runs clients' work on the device. */
bool mover_devices_is_shared(const struct mover_devices *d, const struct mover_device *device);

/* ---- work on a device (move.c) ---- */

struct range {
    uint64_t offset, bytes;
};

/**
 * move_create() - allocate @bytes of GPU memory filled with zeros
 * @ret_fd: the caller's, close-on-exec
 *
 * Return: 0; as cuda_extent_new() and cuda_extent_import().
 */
int move_create(struct mover_device *device, uint64_t bytes, int *ret_fd, struct errmsg *e);

/**
 * move_check() - CRC32C of ranges of an extent
 * @fd:      transferred
 * @ranges:  [n]
 * @ret_crc: [n] caller's
 *
 * Return: 0; -EINVAL: a range beyond the end; as cuda_extent_import(), cuda_extent_read().
 */
int move_check(struct mover_device *device, int fd, uint64_t extent_bytes, const struct range *ranges,
               size_t n, uint32_t *ret_crc, struct errmsg *e);

/**
 * move_copy() - copy between a range of an extent and the beginning of a file
 * @fd:   the extent's, transferred
 * @file: a memory object, borrowed; read and written, never mapped, since its owner may truncate it
 *
 * Return: 0; -EINVAL: a range beyond the end; -EBADMSG: the file is shorter than the range, or cannot be read
 * or written; as above.
 */
int move_copy(struct mover_device *device, int fd, uint64_t extent_bytes, const struct range *range, int file,
              bool to_extent, struct errmsg *e);
