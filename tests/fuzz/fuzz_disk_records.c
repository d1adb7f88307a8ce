/*
 * The file of records of a disk tier, with and without correct checksums: what is accepted is consistent,
 * every page has a place in the file of pages, and the tier goes on with it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/tier/disk_folder.h"
#include "daemon/tier/disk_map.h"
#include "proto/crc32c.h"
#include "tests/fuzz/disk_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok)
        abort();
}

struct reading {
    struct disk_map map;
    struct disk_segment_head head; /* of the segment that is being read */
    unsigned n_records;
};

static bool on_segment(void *ctx, const struct disk_segment_head *h)
{
    struct reading *x = ctx;
    uint8_t bytes[DISK_SEGMENT_HEAD_BYTES];
    struct disk_segment_head back;

    disk_segment_head_store(h, bytes);
    check(disk_segment_head_load(bytes, h->number, DISK_IMAGE_SEGMENT_BYTES, &back));
    check(tier_group_equal(&h->group, &back.group));
    x->head = *h;
    return disk_map_adopt_segment(&x->map, h);
}

static void on_record(void *ctx, const struct disk_record *r)
{
    struct reading *x = ctx;

    check(r->slot < x->head.n_slots && r->generation == x->head.generation);
    disk_map_adopt_page(&x->map, x->head.number, r);
    x->n_records++;
}

static void check_page(const struct disk_map *m, const struct disk_segment *s, uint32_t slot)
{
    struct disk_place p;

    if (s->slots[slot].state != DISK_SLOT_PRESENT)
        return;
    check(disk_map_find((struct disk_map *) m, &s->group->id, &s->slots[slot].key, &p));
    check(p.segment == s->number && p.slot == slot && disk_map_is_current(m, &p));
    check(p.offset >= s->number * m->segment_bytes && p.slot_bytes <= m->segment_bytes &&
          p.offset + p.slot_bytes <= (s->number + 1) * m->segment_bytes);
}

/* Writes pages of one more tenant until segments are discarded. */
static void use(struct disk_map *m)
{
    struct tier_group g;
    struct disk_place p;
    struct errmsg e = {""};
    bool began;

    tier_group_init(&g, "another");
    g.n_heads = 1;
    g.page_bytes = DISK_IMAGE_SEGMENT_BYTES / 2 - 64;
    for (uint64_t i = 0; i < 4 * DISK_IMAGE_SEGMENTS; i++) {
        struct chunk_key key = {{0}};

        memcpy(key.bytes + 4, &i, 4); /* the homes differ */
        memcpy(key.bytes + 12, &i, 4);
        if (disk_map_claim(m, &g, &key, UINT64_MAX, &p, &began) == 0)
            check(disk_map_publish(m, &p));
        check(i % 8 != 0 || disk_map_is_valid(m, &e));
    }
    disk_map_end(m, NULL, NULL);
    for (uint32_t segment = 0; disk_map_take_ended(m, &segment);)
        ;
    check(m->n_used == 0 && m->n_pages == 0 && !m->owners);
}

static void read_file(int fd, uint32_t n_segments)
{
    struct disk_folder folder = {.path = (char *) "fuzz",
                                 .records_fd = fd,
                                 .n_segments = n_segments,
                                 .n_segments_max = n_segments,
                                 .segment_bytes = DISK_IMAGE_SEGMENT_BYTES};
    struct reading x = {.n_records = 0};
    const struct disk_folder_reader reader = {.on_segment = on_segment, .on_record = on_record, .ctx = &x};
    struct errmsg e = {""};

    check(disk_map_init(&x.map, n_segments, n_segments, DISK_IMAGE_SEGMENT_BYTES, DISK_SLOT_BYTES_MIN) == 0);
    check(disk_folder_read(&folder, &reader, &e) == 0);
    check(disk_map_adopt_done(&x.map) == 0 && disk_map_is_valid(&x.map, &e));
    check(x.map.n_pages <= x.n_records);
    for (uint32_t i = 0; i < n_segments; i++)
        for (uint32_t k = 0; k < x.map.segments[i].n_filled; k++)
            check_page(&x.map, &x.map.segments[i], k);
    use(&x.map);
    disk_map_deinit(&x.map);
}

/* ---- the image ---- */

static void correct(uint8_t *area, uint32_t segment)
{
    uint32_t crc = crc32c(area, DISK_SEGMENT_HEAD_BYTES - 4);

    memcpy(area + DISK_SEGMENT_HEAD_BYTES - 4, &crc, sizeof(crc));
    for (unsigned i = 0; i < DISK_IMAGE_SLOTS; i++) {
        uint8_t *record = area + DISK_SEGMENT_HEAD_BYTES + i * DISK_RECORD_BYTES;

        crc = crc32c_continue(crc32c(record, DISK_RECORD_BYTES - 4), &segment, sizeof(segment));
        memcpy(record + DISK_RECORD_BYTES - 4, &crc, sizeof(crc));
    }
}

static void read_folder_head(const uint8_t *data)
{
    uint8_t bytes[DISK_FOLDER_HEAD_BYTES] = {0}, back[DISK_FOLDER_HEAD_BYTES];
    struct disk_folder_head h;
    struct errmsg e = {""};
    uint32_t crc;
    int r;

    memcpy(bytes, data, DISK_IMAGE_HEAD_BYTES);
    crc = crc32c(bytes, sizeof(bytes) - 4);
    memcpy(bytes + sizeof(bytes) - 4, &crc, sizeof(crc));
    r = disk_folder_head_load(bytes, &h, &e);
    check((e.text[0] != '\0') == (r < 0));
    if (r < 0 || r == DISK_HEAD_IS_OLDER)
        return;
    disk_folder_head_store(&h, back);
    check(memcmp(back, bytes, sizeof(back)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    uint8_t area[DISK_IMAGE_AREA_BYTES];
    uint32_t n;

    if (size < DISK_IMAGE_HEAD_BYTES + DISK_IMAGE_AREA_BYTES)
        return 0;
    if (fd < 0)
        fd = memfd_create("records", MFD_CLOEXEC);
    read_folder_head(data);
    n = (uint32_t) ((size - DISK_IMAGE_HEAD_BYTES) / DISK_IMAGE_AREA_BYTES);
    if (n > DISK_IMAGE_SEGMENTS)
        n = DISK_IMAGE_SEGMENTS;
    for (unsigned corrects = 0; corrects < 2; corrects++) {
        check(ftruncate(fd, 0) == 0);
        for (uint32_t i = 0; i < n; i++) {
            memcpy(area, data + DISK_IMAGE_HEAD_BYTES + i * DISK_IMAGE_AREA_BYTES, sizeof(area));
            if (corrects)
                correct(area, i);
            check(pwrite(fd, area, sizeof(area),
                         (off_t) disk_segment_head_offset(i, DISK_IMAGE_SEGMENT_BYTES)) == sizeof(area));
        }
        read_file(fd, n);
    }
    return 0;
}
