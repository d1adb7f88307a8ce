/* Creates, checks and copies extents; see mover_devices.h. */
#include "mover/mover_devices.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "proto/crc32c.h"

enum { PIECE_BYTES = 1 << 20 };

static uint8_t piece[PIECE_BYTES]; /* buffer between device and file; the process has one thread */

static size_t move_piece_bytes(uint64_t left)
{
    return left < PIECE_BYTES ? (size_t) left : PIECE_BYTES;
}

int move_create(struct mover_device *device, uint64_t bytes, int *ret_fd, struct errmsg *e)
{
    _cleanup_(cuda_extent_freep) struct cuda_extent *x = NULL;
    _cleanup_(closep) int fd = -1;
    int copy, r;

    r = cuda_extent_new(device->space, bytes, &fd, e);
    if (r < 0)
        return r;

    copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return fail(e, -errno, "cannot duplicate a descriptor: %s", strerror(errno));

    r = cuda_extent_import(device->space, copy, bytes, CU_ACCESS_READ_WRITE, &x, e);
    if (r < 0)
        return r;

    r = cuda_extent_clear(x, e);
    if (r < 0)
        return r;

    *ret_fd = take_fd(&fd);
    return 0;
}

static int move_check_range(const struct range *range, uint64_t extent_bytes, struct errmsg *e)
{
    if (!range_inside(range->offset, range->bytes, extent_bytes))
        return fail(e, -EINVAL, "the range of %llu bytes at %llu is outside a GPU extent of %llu bytes",
                    (unsigned long long) range->bytes, (unsigned long long) range->offset,
                    (unsigned long long) extent_bytes);

    return 0;
}

static int move_checksum(struct cuda_extent *x, const struct range *range, uint32_t *ret, struct errmsg *e)
{
    uint32_t crc = 0;

    for (uint64_t done = 0; done < range->bytes;) {
        size_t n = move_piece_bytes(range->bytes - done);
        int r = cuda_extent_read(x, range->offset + done, piece, n, e);

        if (r < 0)
            return r;

        crc = crc32c_continue(crc, piece, n);
        done += n;
    }

    *ret = crc;
    return 0;
}

int move_check(struct mover_device *device, int fd, uint64_t extent_bytes, const struct range *ranges,
               size_t n, uint32_t *ret_crc, struct errmsg *e)
{
    _cleanup_(cuda_extent_freep) struct cuda_extent *x = NULL;
    _cleanup_(closep) int owned = fd;
    int r;

    for (size_t i = 0; i < n; i++) {
        r = move_check_range(&ranges[i], extent_bytes, e);
        if (r < 0)
            return r;
    }

    r = cuda_extent_import(device->space, take_fd(&owned), extent_bytes, CU_ACCESS_READ, &x, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++) {
        r = move_checksum(x, &ranges[i], &ret_crc[i], e);
        if (r < 0)
            return r;
    }

    return 0;
}

/* Copies one piece of the file to the same offset in the range. */
static int move_piece_in(struct cuda_extent *x, int file, const struct range *range, uint64_t done, size_t n,
                         struct errmsg *e)
{
    int r = fd_pread_all(file, piece, n, done);

    if (r < 0)
        return fail(e, -EBADMSG, "cannot read the file to be copied to the GPU: %s",
                    r == -ENODATA ? "it ends before the range does" : strerror(-r));

    return cuda_extent_write(x, range->offset + done, piece, n, e);
}

static int move_piece_out(struct cuda_extent *x, int file, const struct range *range, uint64_t done, size_t n,
                          struct errmsg *e)
{
    int r = cuda_extent_read(x, range->offset + done, piece, n, e);

    if (r < 0)
        return r;

    r = fd_pwrite_all(file, piece, n, done);
    if (r < 0)
        return fail(e, -EBADMSG, "cannot write the file copied from the GPU: %s", strerror(-r));

    return 0;
}

int move_copy(struct mover_device *device, int fd, uint64_t extent_bytes, const struct range *range, int file,
              bool to_extent, struct errmsg *e)
{
    _cleanup_(cuda_extent_freep) struct cuda_extent *x = NULL;
    _cleanup_(closep) int owned = fd;
    int access = to_extent ? CU_ACCESS_READ_WRITE : CU_ACCESS_READ;
    int r = move_check_range(range, extent_bytes, e);

    if (r < 0)
        return r;

    r = cuda_extent_import(device->space, take_fd(&owned), extent_bytes, access, &x, e);
    if (r < 0)
        return r;

    for (uint64_t done = 0; done < range->bytes; done += PIECE_BYTES) {
        size_t n = move_piece_bytes(range->bytes - done);

        if (to_extent)
            r = move_piece_in(x, file, range, done, n, e);
        else
            r = move_piece_out(x, file, range, done, n, e);
        if (r < 0)
            return r;
    }

    return 0;
}
