/* The memory object of an extent's slot records; see slot.h. */
#include "daemon/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

static int make_object(size_t bytes)
{
    _cleanup_(closep) int fd = memfd_create("kvcobra-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t) bytes) < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    return take_fd(&fd);
}

int slot_records_init(struct slot_records *r, uint32_t n_units, uint64_t unit_bytes, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    uint32_t unit_slots_max = (uint32_t) (unit_bytes / SLOT_ALIGN);
    size_t heads, slots, bytes;
    void *data;

    if (!checked_mul(n_units, sizeof(struct span_head), &heads) ||
        !checked_mul3(n_units, unit_slots_max, sizeof(struct slot), &slots) || !checked_add(heads, slots, &bytes) ||
        !checked_add(bytes, sizeof(struct extent_head), &bytes))
        return fail(e, -EOVERFLOW, "an extent of %u spans has too many slots to number", n_units);
    fd = make_object(bytes);
    if (fd < 0)
        return fail(e, fd, "cannot create the slot records of an extent: %s", strerror(-fd));
    data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return fail(e, -errno, "cannot map the slot records of an extent: %s", strerror(errno));
    *r = (struct slot_records) {
        .bytes = bytes, .data = data, .n_units = n_units, .unit_slots_max = unit_slots_max,
    };
    r->fd = take_fd(&fd);
    return 0;
}

void slot_records_deinit(struct slot_records *r)
{
    if (r->data)
        (void) munmap(r->data, r->bytes);
    if (r->fd >= 0)
        (void) close(r->fd);
    *r = (struct slot_records) { .fd = -1 };
}
