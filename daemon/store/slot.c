/* See slot.h. */
#include "daemon/store/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/memory_file.h"

static int slot_make_object(size_t bytes)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-slots");

    if (fd < 0)
        return fd;
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t) bytes) < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    return take_fd(&fd);
}

static int slot_records_bytes(uint32_t n_units, uint64_t unit_bytes, size_t *ret, struct errmsg *e)
{
    size_t heads, slots, bytes;

    if (!checked_mul(n_units, sizeof(struct span_head), &heads) ||
        !checked_mul3(n_units, unit_bytes / SLOT_ALIGN, sizeof(struct slot), &slots) ||
        !checked_add(heads, slots, &bytes) || !checked_add(bytes, sizeof(struct extent_head), &bytes))
        return fail(e, -EOVERFLOW, "an extent of %u spans has too many slots to number", n_units);

    *ret = bytes;
    return 0;
}

/* Takes @fd over. */
static int slot_map_records(struct slot_records *r, int fd, size_t bytes, uint32_t n_units,
                            uint64_t unit_bytes, struct errmsg *e)
{
    _cleanup_(closep) int owned = fd;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, owned, 0);

    if (data == MAP_FAILED || madvise(data, bytes, MADV_DONTDUMP) < 0)
        return fail(e, -errno, "cannot map the slot records of an extent: %s", strerror(errno));

    *r = (struct slot_records){
        .bytes = bytes,
        .data = data,
        .n_units = n_units,
        .unit_slots_max = (uint32_t) (unit_bytes / SLOT_ALIGN),
    };
    r->fd = take_fd(&owned);
    return 0;
}

int slot_records_init(struct slot_records *r, uint32_t n_units, uint64_t unit_bytes, struct errmsg *e)
{
    size_t bytes;
    int fd, k = slot_records_bytes(n_units, unit_bytes, &bytes, e);

    if (k < 0)
        return k;

    fd = slot_make_object(bytes);
    if (fd < 0)
        return fail(e, fd, "cannot create the slot records of an extent: %s", strerror(-fd));
    return slot_map_records(r, fd, bytes, n_units, unit_bytes, e);
}

int slot_records_peek(int fd, struct extent_head *ret, struct errmsg *e)
{
    struct extent_head h;
    int r = fd_pread_all(fd, &h, sizeof(h), 0);

    if (r < 0 && r != -ENODATA)
        return fail(e, r, "cannot read the slot records: %s", strerror(-r));
    if (r < 0 || h.magic != RECORDS_MAGIC || h.version != RECORDS_VERSION)
        return fail(e, -EBADMSG, "the slot records are of another version");

    *ret = h;
    return 0;
}

int slot_records_adopt(struct slot_records *r, int fd, uint32_t n_units, uint64_t unit_bytes,
                       struct errmsg *e)
{
    const int need = F_SEAL_SHRINK | F_SEAL_GROW;
    _cleanup_(closep) int owned = fd;
    struct stat st;
    size_t bytes;
    int seals = fcntl(owned, F_GET_SEALS), k = slot_records_bytes(n_units, unit_bytes, &bytes, e);

    if (k < 0)
        return k;
    if (fstat(owned, &st) < 0)
        return fail(e, -errno, "cannot read the size of stored slot records: %s", strerror(errno));
    if (seals < 0 || (seals & need) != need || (uint64_t) st.st_size != bytes)
        return fail(e, -EBADMSG, "stored slot records are not a memory object of this pool");
    return slot_map_records(r, take_fd(&owned), bytes, n_units, unit_bytes, e);
}

void slot_records_discard(struct slot *first, uint32_t n)
{
    uintptr_t page = POOL_PAGE_BYTES, from = ((uintptr_t) first + page - 1) & ~(page - 1);
    uintptr_t to = (uintptr_t) (first + n) & ~(page - 1); /* the pages at both ends have other records, too */

    if (from < to)
        (void) madvise((void *) from, to - from, MADV_REMOVE);
}

int slot_records_freeze(struct slot_records *r)
{
    const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;

    if (mmap(r->data, r->bytes, PROT_READ | PROT_WRITE, flags, r->fd, 0) == MAP_FAILED)
        return -errno;
    return madvise(r->data, r->bytes, MADV_DONTDUMP) < 0 ? -errno : 0;
}

void slot_records_deinit(struct slot_records *r)
{
    if (r->data)
        (void) munmap(r->data, r->bytes);
    if (r->fd >= 0)
        (void) close(r->fd);
    *r = (struct slot_records){.fd = -1};
}
