/*
 * Extents in GPU memory: created and exported by the mover, imported and mapped by clients. The memory lives
 * as long as any process holds a descriptor or a mapping of it.
 *
 * A space is the part of one device that this process uses: the primary context of the device, and one range
 * of addresses that is reserved for all extents of a pool, so that mapping one never moves another.
 *
 * Order of calls, which the driver demands or which saves memory:
 *
 *     open     reserve addresses -> create or import -> map -> set access -> release the handle, since the
 *              mapping holds the memory
 *     close    end all work on the extent -> unmap -> give its addresses back to the space -> at the very
 *              end free the range
 *
 * Descriptors are closed as soon as they have been sent or imported: each one holds the memory, as a
 * mapping does.
 */
#pragma once

#include <stddef.h>

#include "gpu/cuda/driver.h"

struct cuda_space;
struct cuda_extent;

/**
 * cuda_space_new() - a context on a device, and a range of addresses
 * @driver: borrowed, outlives the space
 * @bytes:  of all extents together; rounded up to the granularity; reserves addresses only, no memory
 *
 * Return: 0; -EINVAL, -EOVERFLOW: @bytes; else as cuda_fail().
 */
int cuda_space_new(const struct cuda_driver *driver, const struct cuda_device_info *device, size_t bytes,
                   struct cuda_space **ret_space, struct errmsg *e);

/* All extents must have been freed: asserted. Accepts NULL; returns NULL. */
struct cuda_space *cuda_space_free(struct cuda_space *s);
static inline void cuda_space_freep(struct cuda_space **s)
{
    *s = cuda_space_free(*s);
}

const struct cuda_device_info *cuda_space_device(const struct cuda_space *s);
const struct cuda_driver *cuda_space_driver(const struct cuda_space *s);

/* Makes the context of the space current in this thread; every function below does this itself. */
int cuda_space_enter(struct cuda_space *s, struct errmsg *e);
void cuda_space_leave(struct cuda_space *s);

/**
 * cuda_extent_new() - create memory of @bytes and its descriptor; does not map it
 * @bytes:  a multiple of the granularity of the device
 * @ret_fd: the caller's, close-on-exec; the memory lives as long as it or any mapping
 *
 * The contents are undefined and may be those of another process: clear an extent
 * before its first importer maps it.
 *
 * Return: 0; -EINVAL: @bytes; -ENOMEM; else as cuda_fail().
 */
int cuda_extent_new(struct cuda_space *s, size_t bytes, int *ret_fd, struct errmsg *e);

/**
 * cuda_extent_import() - map an extent of another process
 * @fd:     transferred: closed also on failure
 * @bytes:  the size that its owner announced; the driver refuses to map more than the memory has
 * @access: CU_ACCESS_READ or CU_ACCESS_READ_WRITE. CU_ACCESS_READ restricts this process alone: a stray
 *          write faults. Another importer can still write (gpu/cuda/README.md, "Errors by call")
 *
 * Return: 0; -ENOSPC: the space has no addresses left; -EINVAL: @bytes; -EBADMSG: not memory of this
 * device, or less than @bytes; else as cuda_fail().
 */
int cuda_extent_import(struct cuda_space *s, int fd, size_t bytes, int access,
                       struct cuda_extent **ret_extent, struct errmsg *e);

/* All work that uses the extent must have ended. Accepts NULL; returns NULL. */
struct cuda_extent *cuda_extent_free(struct cuda_extent *x);
static inline void cuda_extent_freep(struct cuda_extent **x)
{
    *x = cuda_extent_free(*x);
}

/* Allows writes to an extent that was imported for reading. Return: 0; as cuda_fail(). */
int cuda_extent_allow_write(struct cuda_extent *x, struct errmsg *e);

cu_ptr cuda_extent_address(const struct cuda_extent *x);
size_t cuda_extent_bytes(const struct cuda_extent *x);

/**
 * cuda_extent_read() - copy @n bytes at @offset to @to
 * cuda_extent_write() - copy @n bytes from @from to @offset; the extent must be mapped CU_ACCESS_READ_WRITE
 *
 * Both wait until the copy is done. Return: 0; -EINVAL: beyond the end; else as cuda_fail().
 */
int cuda_extent_read(struct cuda_extent *x, size_t offset, void *to, size_t n, struct errmsg *e);
int cuda_extent_write(struct cuda_extent *x, size_t offset, const void *from, size_t n, struct errmsg *e);

/* Fills the extent with zeros and waits until that is done. The extent must be mapped CU_ACCESS_READ_WRITE.
 * Return: 0; as cuda_fail(). */
int cuda_extent_clear(struct cuda_extent *x, struct errmsg *e);
