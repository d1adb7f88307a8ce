/* Reads the records of a folder at the start; see disk_folder.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/tier/disk_folder.h"

enum { READ_RECORDS = 2048 }; /* at a time */

/* Reads what the file has of a range; zeros where it ends. */
static int disk_folder_read_some(const struct disk_folder *f, uint8_t *to, size_t bytes, uint64_t offset,
                                 struct errmsg *e)
{
    size_t have = 0;

    while (have < bytes) {
        ssize_t n = pread(f->records_fd, to + have, bytes - have, (off_t) (offset + have));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, -errno, "cannot read %s/records: %s", f->path, strerror(errno));
        if (n == 0)
            break;
        have += (size_t) n;
    }

    memset(to + have, 0, bytes - have);
    return 0;
}

static int disk_folder_read_segment(const struct disk_folder *f, const struct disk_segment_head *h,
                                    const struct disk_folder_reader *reader, uint8_t *buffer,
                                    struct errmsg *e)
{
    for (uint32_t first = 0; first < h->n_slots; first += READ_RECORDS) {
        uint32_t n = h->n_slots - first < READ_RECORDS ? h->n_slots - first : READ_RECORDS;
        int r = disk_folder_read_some(f, buffer, (size_t) n * DISK_RECORD_BYTES,
                                      disk_record_offset(h->number, first, f->segment_bytes), e);

        if (r < 0)
            return r;

        for (uint32_t i = 0; i < n; i++) {
            struct disk_record record;

            if (disk_record_load(buffer + (size_t) i * DISK_RECORD_BYTES, h, first + i, &record))
                reader->on_record(reader->ctx, &record);
        }
    }

    return 0;
}

int disk_folder_read(const struct disk_folder *f, const struct disk_folder_reader *reader, struct errmsg *e)
{
    _cleanup_(freep) uint8_t *buffer = malloc((size_t) READ_RECORDS * DISK_RECORD_BYTES);
    uint8_t head[DISK_SEGMENT_HEAD_BYTES];
    struct disk_segment_head h;
    int r = buffer ? 0 : fail(e, -ENOMEM, "out of memory for the records of %s", f->path);

    for (uint32_t i = 0; i < f->n_segments && r == 0; i++) {
        r = disk_folder_read_some(f, head, sizeof(head), disk_segment_head_offset(i, f->segment_bytes), e);
        if (r == 0 && disk_segment_head_load(head, i, f->segment_bytes, &h) &&
            reader->on_segment(reader->ctx, &h))
            r = disk_folder_read_segment(f, &h, reader, buffer, e);
    }

    return r;
}
