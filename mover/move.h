/* What is done with extents: made, checked, copied. Each is mapped for as long as that takes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "mover/mover_devices.h"

struct range {
    uint64_t offset, bytes;
};

/**
 * move_create() - memory of @bytes full of zeros
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
 * move_copy() - between a range of an extent and a file from its beginning
 * @fd:   the extent's, transferred
 * @file: a memory object, borrowed; it is read and written, never mapped, so that its owner may shorten it
 *
 * Return: 0; -EINVAL: a range beyond the end; -EBADMSG: the file is shorter, or cannot be read or written; as
 * above.
 */
int move_copy(struct mover_device *device, int fd, uint64_t extent_bytes, const struct range *range, int file,
              bool to_extent, struct errmsg *e);
