/*
 * Creates extents, computes checksums of pages, copies between extents and files, for serve.c. An extent is
 * mapped during the call only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "mover/mover_devices.h"

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
