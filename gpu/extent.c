/*
 * Memory objects of the CPU; see device.h. They are memfds that only
 * their owner can write, resize or punch.
 *
 * The descriptor that memfd_create() returns is writable, and a process that receives it may map it
 * writable: file modes are checked at open, not at mmap. So the owner maps its memory through the writable
 * descriptor, then stores and exports another one, which it opens read-only. Mode 0400 stops another uid
 * from opening the object anew through /proc.
 */
#include "gpu/device.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_number.h"
#include "base/memory_file.h"

enum { NAME_MAX_CHARS = 200 };

struct extent {
    int fd;
    void *data; /* MAP_FAILED is stored as NULL */
    size_t bytes;
};

struct extent *extent_free(struct extent *x)
{
    if (!x)
        return NULL;
    if (x->data)
        (void) munmap(x->data, x->bytes);
    closep(&x->fd);
    free(x);
    return NULL;
}

void *extent_data(const struct extent *x)
{
    return x->data;
}

size_t extent_bytes(const struct extent *x)
{
    return x->bytes;
}

int extent_fd(const struct extent *x)
{
    return x->fd;
}

static struct extent *extent_alloc(size_t bytes)
{
    struct extent *x = malloc(sizeof(*x));

    if (x)
        *x = (struct extent){.fd = -1, .bytes = bytes};
    return x;
}

/* A forked child must neither see the pages of a pool nor keep their memory allocated: the daemon granted
 * access to its parent only. A core file is written to a disk, where pages are sealed only. */
static int extent_map_shared(struct extent *x, int fd, int prot)
{
    void *p = mmap(NULL, x->bytes, prot, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return -errno;

    x->data = p;
    return madvise(p, x->bytes, MADV_DONTFORK) < 0 || madvise(p, x->bytes, MADV_DONTDUMP) < 0 ? -errno : 0;
}

/* ---- owner ---- */

static int extent_fallocate(int fd, int mode, size_t offset, size_t bytes)
{
    int r;

    do
        r = fallocate(fd, mode, (off_t) offset, (off_t) bytes);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

int extent_allocate(int fd, size_t offset, size_t bytes)
{
    return extent_fallocate(fd, 0, offset, bytes);
}

void extent_discard(const struct extent *x, size_t offset, size_t bytes)
{
    (void) madvise((uint8_t *) x->data + offset, bytes, MADV_REMOVE);
}

/* F_SEAL_SEAL comes last: after it no seal can be added, so an importer refuses a descriptor that lacks one
 * and does not try to repair it. */
static int extent_seal(int fd, enum extent_access access)
{
    if (fchmod(fd, access == EXTENT_READ ? 0400 : 0600) < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0)
        return -errno;

    return 0;
}

static int extent_open_read_only(int fd, int *ret_fd)
{
    char path[64];
    int ro;

    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ro = fd_above_standard(open(path, O_RDONLY | O_CLOEXEC));
    if (ro < 0)
        return -errno;

    *ret_fd = ro;
    return 0;
}

static int extent_check_request(const char *name, size_t bytes, struct errmsg *e)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE);

    if (strlen(name) > NAME_MAX_CHARS)
        return fail(e, -EINVAL, "the name of a memory object has more than %d characters", NAME_MAX_CHARS);
    if (bytes == 0 || bytes % page != 0 || bytes > SSIZE_MAX)
        return fail(e, -EINVAL, "memory object %s: %zu bytes is not a multiple of the page size %zu", name,
                    bytes, page);

    return 0;
}

/* The descriptor for importers: a copy of the owner's, or one that cannot write. */
static int extent_make_export(struct extent *x, int owner, enum extent_access access)
{
    if (access == EXTENT_READ)
        return extent_open_read_only(owner, &x->fd);

    x->fd = fcntl(owner, F_DUPFD_CLOEXEC, 3);
    return x->fd < 0 ? -errno : 0;
}

/* @allocated: the bytes from the start that get memory now. */
static int extent_new_partial(const char *name, size_t bytes, size_t allocated, enum extent_access access,
                              struct extent **ret_extent, int *ret_owner_fd, struct errmsg *e)
{
    _cleanup_(extent_freep) struct extent *x = NULL;
    _cleanup_(closep) int fd = -1;
    int r;

    r = extent_check_request(name, bytes, e);
    if (r < 0)
        return r;

    x = extent_alloc(bytes);
    if (!x)
        return fail(e, -ENOMEM, "memory object %s: out of memory", name);

    fd = memory_file_open(name);
    if (fd < 0)
        return fail(e, fd, "memory object %s: memfd_create: %s", name, strerror(-fd));

    r = ftruncate(fd, (off_t) bytes) < 0 ? -errno : 0;
    if (r == 0 && allocated > 0)
        r = extent_allocate(fd, 0, allocated);
    if (r < 0)
        return fail(e, r, "memory object %s: cannot allocate %zu bytes: %s", name, bytes, strerror(-r));

    r = extent_map_shared(x, fd, PROT_READ | PROT_WRITE);
    if (r < 0)
        return fail(e, r, "memory object %s: cannot map %zu bytes: %s", name, bytes, strerror(-r));

    r = extent_seal(fd, access);
    if (r < 0)
        return fail(e, r, "memory object %s: cannot seal: %s", name, strerror(-r));

    r = extent_make_export(x, fd, access);
    if (r < 0)
        return fail(e, r, "memory object %s: cannot open it for others (is /proc mounted?): %s", name,
                    strerror(-r));

    *ret_extent = take_ptr(x);
    *ret_owner_fd = take_fd(&fd);
    return 0;
}

int extent_new_kept(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                    int *ret_owner_fd, struct errmsg *e)
{
    return extent_new_partial(name, bytes, bytes, access, ret_extent, ret_owner_fd, e);
}

int extent_new_sparse(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                      int *ret_owner_fd, struct errmsg *e)
{
    return extent_new_partial(name, bytes, 0, access, ret_extent, ret_owner_fd, e);
}

int extent_new(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
               struct errmsg *e)
{
    int owner_fd;
    int r = extent_new_kept(name, bytes, access, ret_extent, &owner_fd, e);

    if (r == 0)
        (void) close(owner_fd); /* the mapping stays writable */
    return r;
}

int extent_new_unmapped(const char *name, size_t bytes, struct extent **ret_extent, struct errmsg *e)
{
    _cleanup_(extent_freep) struct extent *x = NULL;
    int r = extent_check_request(name, bytes, e);

    if (r < 0)
        return r;

    x = extent_alloc(bytes);
    if (!x)
        return fail(e, -ENOMEM, "memory object %s: out of memory", name);

    x->fd = memory_file_open(name);
    if (x->fd < 0)
        return fail(e, x->fd, "memory object %s: memfd_create: %s", name, strerror(-x->fd));
    if (ftruncate(x->fd, (off_t) bytes) < 0)
        return fail(e, -errno, "memory object %s: cannot set its size to %zu bytes: %s", name, bytes,
                    strerror(errno));

    r = extent_seal(x->fd, EXTENT_READ_WRITE);
    if (r < 0)
        return fail(e, r, "memory object %s: cannot seal: %s", name, strerror(-r));

    *ret_extent = take_ptr(x);
    return 0;
}

int extent_empty(struct extent *x)
{
    return extent_fallocate(x->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, x->bytes);
}

/* ---- importer ---- */

/* The seals make the size that fstat() reports final. Without them an access
 * through the mapping could fault later. */
static int extent_check_import(int fd, size_t bytes_expected, enum extent_access access, struct errmsg *e)
{
    const int need = F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat st;
    int seals, flags;

    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return fail(e, -EBADMSG, "received descriptor is not a sealable memory object");
    if ((seals & need) != need)
        return fail(e, -EBADMSG, "received memory object is not sealed against resizing");
    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "received memory object: fstat: %s", strerror(errno));
    if (bytes_expected == 0 || st.st_size < 0 || (uintmax_t) st.st_size != bytes_expected)
        return fail(e, -EBADMSG, "received memory object has %jd bytes instead of %zu", (intmax_t) st.st_size,
                    bytes_expected);

    flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return fail(e, -errno, "received memory object: F_GETFL: %s", strerror(errno));
    if (access == EXTENT_READ_WRITE && (flags & O_ACCMODE) != O_RDWR)
        return fail(e, -EBADMSG, "received memory object is read-only, but was announced as writable");

    return 0;
}

int extent_import(int fd, size_t bytes_expected, enum extent_access access, struct extent **ret_extent,
                  struct errmsg *e)
{
    _cleanup_(extent_freep) struct extent *x = NULL;
    _cleanup_(closep) int owned = fd;
    int r;

    r = extent_check_import(owned, bytes_expected, access, e);
    if (r < 0)
        return r;
    if (fcntl(owned, F_SETFD, FD_CLOEXEC) < 0)
        return fail(e, -errno, "received memory object: F_SETFD: %s", strerror(errno));

    x = extent_alloc(bytes_expected);
    if (!x)
        return fail(e, -ENOMEM, "received memory object: out of memory");

    r = extent_map_shared(x, owned, access == EXTENT_READ ? PROT_READ : PROT_READ | PROT_WRITE);
    if (r < 0)
        return fail(e, r, "received memory object: cannot map %zu bytes: %s", bytes_expected, strerror(-r));

    x->fd = take_fd(&owned);
    *ret_extent = take_ptr(x);
    return 0;
}

/* ---- adoption by a later process ---- */

int extent_adopt(int owner_fd, size_t bytes_expected, enum extent_access access, struct extent **ret_extent,
                 struct errmsg *e)
{
    _cleanup_(extent_freep) struct extent *x = NULL;
    _cleanup_(closep) int owned = owner_fd;
    struct stat st;
    int r = extent_check_import(owned, bytes_expected, EXTENT_READ_WRITE, e);

    if (r < 0)
        return r;
    if (fstat(owned, &st) < 0)
        return fail(e, -errno, "kept memory object: fstat: %s", strerror(errno));
    if (!(fcntl(owned, F_GET_SEALS) & F_SEAL_SEAL) ||
        (st.st_mode & 0777) != (access == EXTENT_READ ? 0400 : 0600))
        return fail(e, -EBADMSG, "kept memory object has other seals or another mode than its owner gave it");

    x = extent_alloc(bytes_expected);
    if (!x)
        return fail(e, -ENOMEM, "kept memory object: out of memory");

    r = extent_map_shared(x, owned, PROT_READ | PROT_WRITE);
    if (r == 0)
        r = extent_make_export(x, owned, access);
    if (r < 0)
        return fail(e, r, "kept memory object: cannot map or open %zu bytes: %s", bytes_expected,
                    strerror(-r));

    *ret_extent = take_ptr(x);
    return 0;
}
