/* See extent.h. */
#include "gpu/cuda/extent.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_number.h"

struct cuda_space {
    const struct cuda_driver *driver;
    struct cuda_device_info device;
    cu_context context;
    cu_ptr base;
    size_t bytes;
    uint8_t *used; /* [bytes / granularity] whether a granule's addresses are taken */
    size_t n_extents;
};

struct cuda_extent {
    struct cuda_space *space;
    cu_ptr address;
    size_t bytes;
    bool writable;
};

static struct cu_allocation extent_allocation_of(const struct cuda_device_info *device)
{
    return (struct cu_allocation){
        .type = CU_ALLOCATION_PINNED,
        .handle_types = CU_HANDLE_POSIX_FD,
        .location = {CU_LOCATION_DEVICE, device->ordinal},
    };
}

static bool is_extent_size(const struct cuda_space *s, size_t bytes)
{
    return bytes > 0 && bytes % s->device.granularity == 0;
}

/* ---- the space ---- */

struct cuda_space *cuda_space_free(struct cuda_space *s)
{
    if (!s)
        return NULL;

    assert(s->n_extents == 0);
    if (s->base)
        (void) s->driver->address_free(s->base, s->bytes);
    if (s->context)
        (void) s->driver->context_release(s->device.ordinal);
    free(s->used);
    free(s);
    return NULL;
}

int cuda_space_new(const struct cuda_driver *driver, const struct cuda_device_info *device, size_t bytes,
                   struct cuda_space **ret_space, struct errmsg *e)
{
    _cleanup_(cuda_space_freep) struct cuda_space *s = calloc(1, sizeof(*s));
    size_t rounded;
    cu_result r;

    if (!s)
        return fail(e, -ENOMEM, "out of memory");

    s->driver = driver;
    s->device = *device;
    if (bytes == 0 || !checked_add(bytes, device->granularity - 1, &rounded))
        return fail(e, bytes == 0 ? -EINVAL : -EOVERFLOW, "a GPU pool of %zu bytes is empty or too large",
                    bytes);

    s->bytes = rounded / device->granularity * device->granularity;
    s->used = calloc(s->bytes / device->granularity, 1);
    if (!s->used)
        return fail(e, -ENOMEM, "out of memory");

    r = driver->context_retain(&s->context, device->ordinal);
    if (r != CU_SUCCESS) {
        s->context = NULL;
        return cuda_fail(driver, r, e, "cannot open a context on the GPU");
    }

    r = driver->address_reserve(&s->base, s->bytes, device->granularity, 0, 0);
    if (r != CU_SUCCESS) {
        s->base = 0;
        return cuda_fail(driver, r, e, "cannot reserve addresses for a GPU pool");
    }

    *ret_space = take_ptr(s);
    return 0;
}

const struct cuda_device_info *cuda_space_device(const struct cuda_space *s)
{
    return &s->device;
}

const struct cuda_driver *cuda_space_driver(const struct cuda_space *s)
{
    return s->driver;
}

int cuda_space_enter(struct cuda_space *s, struct errmsg *e)
{
    cu_result r = s->driver->context_push(s->context);

    return r == CU_SUCCESS ? 0 : cuda_fail(s->driver, r, e, "cannot use the GPU's context");
}

void cuda_space_leave(struct cuda_space *s)
{
    cu_context context;

    (void) s->driver->context_pop(&context);
}

/* First fit: extents of a pool have one size, so no gap is too small. Return: an address; 0: none is left. */
static cu_ptr extent_find_addresses(const struct cuda_space *s, size_t bytes)
{
    size_t n = bytes / s->device.granularity, total = s->bytes / s->device.granularity, run = 0;

    for (size_t i = 0; i < total; i++) {
        run = s->used[i] ? 0 : run + 1;
        if (run == n)
            return s->base + (i + 1 - n) * s->device.granularity;
    }
    return 0;
}

static void extent_mark_addresses(struct cuda_space *s, cu_ptr address, size_t bytes, bool taken)
{
    memset(s->used + (address - s->base) / s->device.granularity, taken, bytes / s->device.granularity);
}

/* ---- extents ---- */

int cuda_extent_new(struct cuda_space *s, size_t bytes, int *ret_fd, struct errmsg *e)
{
    const struct cuda_driver *d = s->driver;
    struct cu_allocation prop = extent_allocation_of(&s->device);
    _cleanup_(closep) int fd = -1;
    cu_handle handle;
    cu_result r;

    if (!is_extent_size(s, bytes))
        return fail(e, -EINVAL, "a GPU extent of %zu bytes: %s takes multiples of %zu", bytes, s->device.name,
                    s->device.granularity);

    r = d->mem_create(&handle, bytes, &prop, 0);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot allocate GPU memory for an extent");

    r = d->mem_export(&fd, handle, CU_HANDLE_POSIX_FD, 0);
    (void) d->mem_release(handle); /* from here on the descriptor holds the memory */
    if (r != CU_SUCCESS) {
        fd = -1;
        return cuda_fail(d, r, e, "cannot make a descriptor of GPU memory");
    }

    fd = fd_above_standard(fd);
    if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return fail(e, -errno, "cannot set close-on-exec on a descriptor of GPU memory: %s", strerror(errno));

    *ret_fd = take_fd(&fd);
    return 0;
}

static cu_result extent_set_access(const struct cuda_space *s, cu_ptr address, size_t bytes, int access)
{
    struct cu_access desc = {.location = {CU_LOCATION_DEVICE, s->device.ordinal}, .flags = access};

    return s->driver->set_access(address, bytes, &desc, 1);
}

static int extent_map(struct cuda_extent *x, cu_handle handle, int access, struct errmsg *e)
{
    struct cuda_space *s = x->space;
    const struct cuda_driver *d = s->driver;
    cu_ptr address = extent_find_addresses(s, x->bytes);
    cu_result r;

    if (address == 0)
        return fail(e, -ENOSPC,
                    "the addresses reserved for GPU extents are used up: no %zu bytes in one piece",
                    x->bytes);

    r = d->mem_map(address, x->bytes, 0, handle, 0);
    if (r == CU_INVALID_VALUE) /* every other cause was checked: the memory is smaller than @bytes */
        return fail(e, -EBADMSG, "the GPU extent does not have the announced %zu bytes", x->bytes);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot map a GPU extent");

    r = extent_set_access(s, address, x->bytes, access);
    if (r != CU_SUCCESS) {
        (void) d->mem_unmap(address, x->bytes);
        return cuda_fail(d, r, e, "cannot get access to a GPU extent");
    }

    extent_mark_addresses(s, address, x->bytes, true);
    x->address = address;
    s->n_extents++;
    return 0;
}

int cuda_extent_import(struct cuda_space *s, int fd_transferred, size_t bytes, int access,
                       struct cuda_extent **ret_extent, struct errmsg *e)
{
    _cleanup_(closep) int fd = fd_transferred;
    _cleanup_(freep) struct cuda_extent *x = calloc(1, sizeof(*x));
    cu_handle handle;
    cu_result result;
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory");
    if (!is_extent_size(s, bytes))
        return fail(e, -EINVAL, "a GPU extent of %zu bytes: %s takes multiples of %zu", bytes, s->device.name,
                    s->device.granularity);

    result = s->driver->mem_import(&handle, (void *) (uintptr_t) fd, CU_HANDLE_POSIX_FD);
    if (result != CU_SUCCESS)
        return cuda_fail(s->driver, result, e, "cannot import a GPU extent");

    *x = (struct cuda_extent){.space = s, .bytes = bytes, .writable = access == CU_ACCESS_READ_WRITE};
    r = extent_map(x, handle, access, e);
    (void) s->driver->mem_release(handle); /* the mapping holds the memory */
    if (r < 0)
        return r;

    *ret_extent = take_ptr(x);
    return 0;
}

struct cuda_extent *cuda_extent_free(struct cuda_extent *x)
{
    struct cuda_space *s;

    if (!x)
        return NULL;

    s = x->space;
    /* Addresses are not reused if unmapping failed; the process keeps them until it ends. */
    if (s->driver->mem_unmap(x->address, x->bytes) == CU_SUCCESS)
        extent_mark_addresses(s, x->address, x->bytes, false);
    s->n_extents--;
    free(x);
    return NULL;
}

int cuda_extent_allow_write(struct cuda_extent *x, struct errmsg *e)
{
    cu_result r;

    if (x->writable)
        return 0;

    r = extent_set_access(x->space, x->address, x->bytes, CU_ACCESS_READ_WRITE);
    if (r != CU_SUCCESS)
        return cuda_fail(x->space->driver, r, e, "cannot get write access to a GPU extent");

    x->writable = true;
    return 0;
}

cu_ptr cuda_extent_address(const struct cuda_extent *x)
{
    return x->address;
}

size_t cuda_extent_bytes(const struct cuda_extent *x)
{
    return x->bytes;
}

static int extent_check_range(const struct cuda_extent *x, size_t offset, size_t n, struct errmsg *e)
{
    if (offset > x->bytes || n > x->bytes - offset)
        return fail(e, -EINVAL, "bytes %zu to %zu are outside a GPU extent of %zu bytes", offset, offset + n,
                    x->bytes);

    return 0;
}

int cuda_extent_read(struct cuda_extent *x, size_t offset, void *to, size_t n, struct errmsg *e)
{
    cu_result result;
    int r = extent_check_range(x, offset, n, e);

    if (r < 0 || n == 0)
        return r;

    r = cuda_space_enter(x->space, e);
    if (r < 0)
        return r;

    result = x->space->driver->copy_to_host(to, x->address + offset, n);
    cuda_space_leave(x->space);
    return result == CU_SUCCESS ? 0 : cuda_fail(x->space->driver, result, e, "cannot read GPU memory");
}

int cuda_extent_write(struct cuda_extent *x, size_t offset, const void *from, size_t n, struct errmsg *e)
{
    cu_result result;
    int r = extent_check_range(x, offset, n, e);

    if (r < 0 || n == 0)
        return r;
    if (!x->writable)
        return fail(e, -EPERM, "cannot write to a GPU extent that was imported for reading");

    r = cuda_space_enter(x->space, e);
    if (r < 0)
        return r;

    result = x->space->driver->copy_to_device(x->address + offset, from, n);
    if (result == CU_SUCCESS) /* the call may return when the bytes have left @from, before they arrive */
        result = x->space->driver->context_synchronize();
    cuda_space_leave(x->space);
    return result == CU_SUCCESS ? 0 : cuda_fail(x->space->driver, result, e, "cannot write GPU memory");
}

int cuda_extent_clear(struct cuda_extent *x, struct errmsg *e)
{
    const struct cuda_driver *d = x->space->driver;
    cu_result result;
    int r;

    if (!x->writable)
        return fail(e, -EPERM, "cannot write to a GPU extent that was imported for reading");

    r = cuda_space_enter(x->space, e);
    if (r < 0)
        return r;

    result = d->fill(x->address, 0, x->bytes);
    if (result == CU_SUCCESS)
        result = d->context_synchronize(); /* the fill of device memory is asynchronous */
    cuda_space_leave(x->space);
    return result == CU_SUCCESS ? 0 : cuda_fail(d, result, e, "cannot clear GPU memory");
}
