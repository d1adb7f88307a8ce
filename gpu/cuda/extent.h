/*
 * Extents in GPU memory: created and exported by the mover, imported and mapped by clients, kept alive by
 * whoever holds a descriptor or a mapping.
 *
 * A space is one device's part of this process: its primary context, and one range of addresses reserved for
 * all extents of a pool, so that mapping one never moves another.
 *
 * Order, which the driver demands or rewards:
 *     open    reserve addresses -> create or import -> map -> set access -> (the handle is released; the
 * mapping holds) close   end all work on it -> unmap -> give its addresses back to the space -> at the very
 * end free the range Descriptors are closed as soon as they were sent or imported; each one pins the memory
 * as a mapping does.
 */
#pragma once

#include <stddef.h>

#include "gpu/cuda/driver.h"

struct cuda_space;
struct cuda_extent;

/**
 * cuda_space_new() - a device's context and addresses
 * @driver: borrowed, outlives the space
 * @bytes:  of all extents together; rounded up to the granularity; addresses only, no memory
 *
 * Return: 0; -EINVAL, -EOVERFLOW: @bytes; else as cuda_fail().
 */
int cuda_space_new(const struct cuda_driver *driver, const struct cuda_device_info *device, size_t bytes,
                   struct cuda_space **ret_space, struct errmsg *e);

/* Extents must be gone: asserted. NULL is fine; returns NULL. */
struct cuda_space *cuda_space_free(struct cuda_space *s);
static inline void cuda_space_freep(struct cuda_space **s)
{
    *s = cuda_space_free(*s);
}

const struct cuda_device_info *cuda_space_device(const struct cuda_space *s);
const struct cuda_driver *cuda_space_driver(const struct cuda_space *s);

/* Makes the space's context this thread's; every call below does so by itself. */
int cuda_space_enter(struct cuda_space *s, struct errmsg *e);
void cuda_space_leave(struct cuda_space *s);

/**
 * cuda_extent_new() - create memory of @bytes and its descriptor; not mapped here
 * @bytes:  a multiple of the device's granularity
 * @ret_fd: the caller's, close-on-exec; the memory lives as long as it or any mapping does
 *
 * Contents are undefined, and what another process left there may be: clear an extent before its first
 * importer.
 *
 * Return: 0; -EINVAL: @bytes; -ENOMEM; else as cuda_fail().
 */
int cuda_extent_new(struct cuda_space *s, size_t bytes, int *ret_fd, struct errmsg *e);

/**
 * cuda_extent_import() - map somebody's extent
 * @fd:     transferred: closed also on failure
 * @bytes:  what its owner said; the driver refuses to map more than there is
 * @access: CU_ACCESS_READ or CU_ACCESS_READ_WRITE. Reading only is a promise of this process, which turns a
 * stray write into a fault of its own; nothing stops another importer from writing (gpu/README.md)
 *
 * Return: 0; -ENOSPC: the space has no addresses left; -EINVAL: @bytes; -EBADMSG: not memory of this device,
 * or less than
 * @bytes; else as cuda_fail().
 */
int cuda_extent_import(struct cuda_space *s, int fd, size_t bytes, int access,
                       struct cuda_extent **ret_extent, struct errmsg *e);

/* ---- memory of cuMemAlloc(), that has no descriptor (legacy.c) ---- */

#define CUDA_LEGACY_UNIT                                                                                     \
    ((size_t) 2                                                                                              \
     << 20) /* smaller allocations share one of the driver's, and their handle would map all of it */

/**
 * cuda_legacy_export() - the handle by which other processes open memory of this one
 * @at, @bytes: an allocation of this device by cuMemAlloc() or cudaMalloc(), all of it
 *
 * Return: 0; -EINVAL with a sentence: not the whole of one allocation, no multiple of CUDA_LEGACY_UNIT, of
 * another kind or device; else as cuda_fail().
 */
int cuda_legacy_export(struct cuda_space *s, cu_ptr at, size_t bytes, struct cu_ipc_mem_handle *ret,
                       struct errmsg *e);

/**
 * cuda_extent_open() - map what another process exported; for reading and writing, there is no other way
 *
 * Return: 0; -ESTALE: the driver opens it (any more) for nobody, or not here: its process is this one, or
 * gone; -EBADMSG: it has other than @bytes; else as cuda_fail().
 */
int cuda_extent_open(struct cuda_space *s, const struct cu_ipc_mem_handle *handle, size_t bytes,
                     struct cuda_extent **ret_extent, struct errmsg *e);

/* The same for what this process exported itself: the memory stays the caller's. Return: 0; -ENOMEM. */
int cuda_extent_borrow(struct cuda_space *s, cu_ptr at, size_t bytes, struct cuda_extent **ret_extent,
                       struct errmsg *e);

/* No work may be using it. NULL is fine; returns NULL. */
struct cuda_extent *cuda_extent_free(struct cuda_extent *x);
static inline void cuda_extent_freep(struct cuda_extent **x)
{
    *x = cuda_extent_free(*x);
}

/* An extent that was imported for reading may be written from now on. Return: 0; as cuda_fail(). */
int cuda_extent_allow_write(struct cuda_extent *x, struct errmsg *e);

cu_ptr cuda_extent_address(const struct cuda_extent *x);
size_t cuda_extent_bytes(const struct cuda_extent *x);

/**
 * cuda_extent_read() - copy @n bytes at @offset to @to
 * cuda_extent_write() - and from @from; the extent must be mapped CU_ACCESS_READ_WRITE
 *
 * Both wait until it is done. Return: 0; -EINVAL: beyond the end; else as cuda_fail().
 */
int cuda_extent_read(struct cuda_extent *x, size_t offset, void *to, size_t n, struct errmsg *e);
int cuda_extent_write(struct cuda_extent *x, size_t offset, const void *from, size_t n, struct errmsg *e);

/* Fills it with zeros and waits until that is done; it must be mapped CU_ACCESS_READ_WRITE. Return: 0; as
 * cuda_fail(). */
int cuda_extent_clear(struct cuda_extent *x, struct errmsg *e);
