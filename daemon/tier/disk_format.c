/* See disk_format.h. */
#include "daemon/tier/disk_format.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/errmsg.h"
#include "daemon/tier/seal.h"
#include "proto/crc32c.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored integers are little-endian");

struct disk_stored_folder {
    uint32_t magic, version;
    uint8_t fleet[DISK_FLEET_BYTES];
    uint64_t segment_bytes, counter;
    uint32_t page_format;
    uint8_t zero[4048];
    uint32_t crc32c;
};
_Static_assert(sizeof(struct disk_stored_folder) == DISK_FOLDER_HEAD_BYTES, "head of a folder");
_Static_assert(offsetof(struct disk_stored_folder, counter) == DISK_COUNTER_OFFSET, "counter of a folder");

struct disk_stored_segment {
    uint32_t magic, number;
    uint64_t generation, slot_bytes, page_bytes;
    uint32_t n_slots;
    uint16_t first_head, n_heads;
    uint8_t page_class, zero[7];
    uint8_t table_digest[TIER_TABLE_BYTES];
    char tenant[TIER_TENANT_BYTES];
    uint8_t zero2[108];
    uint32_t crc32c;
};
_Static_assert(sizeof(struct disk_stored_segment) == DISK_SEGMENT_HEAD_BYTES, "head of a segment");

struct disk_stored_record {
    uint8_t key[CHUNK_KEY_BYTES];
    uint64_t generation;
    uint32_t slot, crc32c;
};
_Static_assert(sizeof(struct disk_stored_record) == DISK_RECORD_BYTES, "record of a page");

/* ---- sizes ---- */

uint64_t disk_slot_bytes(uint64_t page_bytes, uint64_t align, uint64_t segment_bytes)
{
    size_t bytes;

    if (align < DISK_SLOT_BYTES_MIN)
        align = DISK_SLOT_BYTES_MIN;
    if (page_bytes > SEAL_PAGE_BYTES_MAX || !checked_align(seal_bytes(page_bytes), align, &bytes))
        return 0;
    return bytes <= segment_bytes ? bytes : 0;
}

static uint64_t disk_area_bytes(uint64_t segment_bytes)
{
    uint64_t n = segment_bytes / DISK_SLOT_BYTES_MIN;
    size_t bytes = DISK_SEGMENT_HEAD_BYTES + (n < DISK_SLOTS_MAX ? n : DISK_SLOTS_MAX) * DISK_RECORD_BYTES;

    (void) checked_align(bytes, DISK_FOLDER_HEAD_BYTES, &bytes); /* bounded by DISK_SLOTS_MAX */
    return bytes;
}

uint64_t disk_segment_head_offset(uint32_t segment, uint64_t segment_bytes)
{
    return DISK_FOLDER_HEAD_BYTES + segment * disk_area_bytes(segment_bytes);
}

uint64_t disk_record_offset(uint32_t segment, uint32_t slot, uint64_t segment_bytes)
{
    return disk_segment_head_offset(segment, segment_bytes) + DISK_SEGMENT_HEAD_BYTES +
           (uint64_t) slot * DISK_RECORD_BYTES;
}

/* ---- heads and records ---- */

void disk_folder_head_store(const struct disk_folder_head *h, uint8_t ret[static DISK_FOLDER_HEAD_BYTES])
{
    struct disk_stored_folder s;

    memset(&s, 0, sizeof(s));
    s.magic = DISK_FOLDER_MAGIC;
    s.version = h->version;
    memcpy(s.fleet, h->fleet, sizeof(s.fleet));
    s.segment_bytes = h->segment_bytes;
    s.page_format = h->page_format;
    s.crc32c = crc32c(&s, offsetof(struct disk_stored_folder, crc32c));
    s.counter = h->counter;
    memcpy(ret, &s, sizeof(s));
}

int disk_folder_head_load(const uint8_t bytes[static DISK_FOLDER_HEAD_BYTES], struct disk_folder_head *ret,
                          struct errmsg *e)
{
    struct disk_stored_folder s;
    struct disk_folder_head h;
    uint8_t again[DISK_FOLDER_HEAD_BYTES];

    memcpy(&s, bytes, sizeof(s));
    h.counter = s.counter;
    s.counter = 0;
    if (s.magic != DISK_FOLDER_MAGIC)
        return fail(e, -EBADMSG, "it is not the file of a disk tier");
    if (s.version > DISK_VERSION)
        return fail(e, -EPROTO,
                    "a newer kvcobrad wrote it: it has version %" PRIu32
                    " of the format, and this one reads version %d",
                    s.version, DISK_VERSION);
    if (s.crc32c != crc32c(&s, offsetof(struct disk_stored_folder, crc32c)))
        return fail(e, -EBADMSG, "its head is damaged");
    if (s.version == DISK_VERSION && s.page_format > PAGE_FORMAT_VERSION)
        return fail(e, -EPROTO,
                    "a newer kvcobrad wrote it: it has pages in format %" PRIu32
                    ", and this one reads format %d",
                    s.page_format, PAGE_FORMAT_VERSION);
    if (s.version < DISK_VERSION || s.page_format < PAGE_FORMAT_VERSION) {
        *ret = (struct disk_folder_head){.version = s.version, .page_format = s.page_format};
        memcpy(ret->fleet, s.fleet, sizeof(ret->fleet));
        return DISK_HEAD_IS_OLDER;
    }
    if (s.segment_bytes < DISK_SEGMENT_BYTES_MIN || s.segment_bytes > DISK_SEGMENT_BYTES_MAX ||
        (s.segment_bytes & (s.segment_bytes - 1)) != 0)
        return fail(e, -EBADMSG, "it names segments of %" PRIu64 " bytes", s.segment_bytes);

    h = (struct disk_folder_head){.version = s.version,
                                  .page_format = s.page_format,
                                  .segment_bytes = s.segment_bytes,
                                  .counter = h.counter};
    memcpy(h.fleet, s.fleet, sizeof(h.fleet));
    disk_folder_head_store(&h, again);
    if (memcmp(again, bytes, sizeof(again)) != 0) /* bytes that are zeros in this version */
        return fail(e, -EBADMSG, "its head has fields that this kvcobrad does not know");

    *ret = h;
    return 0;
}

void disk_segment_head_store(const struct disk_segment_head *h, uint8_t ret[static DISK_SEGMENT_HEAD_BYTES])
{
    struct disk_stored_segment s;

    memset(&s, 0, sizeof(s));
    s.magic = DISK_SEGMENT_MAGIC;
    s.number = h->number;
    s.generation = h->generation;
    s.slot_bytes = h->slot_bytes;
    s.page_bytes = h->group.page_bytes;
    s.n_slots = h->n_slots;
    s.first_head = h->group.first_head;
    s.n_heads = h->group.n_heads;
    s.page_class = h->group.page_class;
    memcpy(s.table_digest, h->group.table_digest, sizeof(s.table_digest));
    memcpy(s.tenant, h->group.tenant, sizeof(s.tenant));
    s.crc32c = crc32c(&s, offsetof(struct disk_stored_segment, crc32c));
    memcpy(ret, &s, sizeof(s));
}

/* Printable ASCII without quotes, as names of tenants are, with zeros behind it. */
static bool disk_tenant_is_valid(const char name[static TIER_TENANT_BYTES])
{
    size_t n = 0;

    while (n < TIER_TENANT_BYTES && name[n] > ' ' && name[n] < 127 && name[n] != '"')
        n++;
    if (n == 0 || n == TIER_TENANT_BYTES)
        return false;
    for (size_t i = n; i < TIER_TENANT_BYTES; i++)
        if (name[i] != '\0')
            return false;
    return true;
}

static bool disk_segment_sizes_are_valid(const struct disk_stored_segment *s, uint64_t segment_bytes)
{
    return s->page_bytes <= SEAL_PAGE_BYTES_MAX && s->slot_bytes >= DISK_SLOT_BYTES_MIN &&
           s->slot_bytes % DISK_SLOT_BYTES_MIN == 0 && s->slot_bytes >= seal_bytes(s->page_bytes) &&
           s->n_slots > 0 && s->n_slots <= DISK_SLOTS_MAX && s->slot_bytes <= segment_bytes / s->n_slots;
}

bool disk_segment_head_load(const uint8_t bytes[static DISK_SEGMENT_HEAD_BYTES], uint32_t number,
                            uint64_t segment_bytes, struct disk_segment_head *ret)
{
    struct disk_stored_segment s;
    struct disk_segment_head h;
    uint8_t again[DISK_SEGMENT_HEAD_BYTES];

    memcpy(&s, bytes, sizeof(s));
    if (s.magic != DISK_SEGMENT_MAGIC || s.number != number ||
        s.crc32c != crc32c(&s, offsetof(struct disk_stored_segment, crc32c)))
        return false;
    if (s.generation == 0 || s.generation > DISK_GENERATION_MAX || s.page_class >= DISK_CLASSES ||
        s.n_heads == 0 || !disk_tenant_is_valid(s.tenant) || !disk_segment_sizes_are_valid(&s, segment_bytes))
        return false;

    h = (struct disk_segment_head){
        .number = number, .generation = s.generation, .slot_bytes = s.slot_bytes, .n_slots = s.n_slots};
    tier_group_init(&h.group, s.tenant);
    memcpy(h.group.table_digest, s.table_digest, sizeof(s.table_digest));
    h.group.first_head = s.first_head;
    h.group.n_heads = s.n_heads;
    h.group.page_class = s.page_class;
    h.group.page_bytes = s.page_bytes;
    disk_segment_head_store(&h, again);
    if (memcmp(again, bytes, sizeof(again)) != 0) /* bytes that are zeros in this version */
        return false;

    *ret = h;
    return true;
}

static uint32_t disk_record_crc(const struct disk_stored_record *s, uint32_t segment)
{
    uint32_t crc = crc32c(s, offsetof(struct disk_stored_record, crc32c));

    return crc32c_continue(crc, &segment, sizeof(segment));
}

void disk_record_store(const struct disk_record *r, uint32_t segment, uint8_t ret[static DISK_RECORD_BYTES])
{
    struct disk_stored_record s = {.generation = r->generation, .slot = r->slot};

    memcpy(s.key, r->key.bytes, sizeof(s.key));
    s.crc32c = disk_record_crc(&s, segment);
    memcpy(ret, &s, sizeof(s));
}

bool disk_record_load(const uint8_t bytes[static DISK_RECORD_BYTES], const struct disk_segment_head *h,
                      uint32_t slot, struct disk_record *ret)
{
    struct disk_stored_record s;

    memcpy(&s, bytes, sizeof(s));
    if (s.generation != h->generation || s.slot != slot || s.crc32c != disk_record_crc(&s, h->number))
        return false;

    ret->generation = s.generation;
    ret->slot = s.slot;
    memcpy(ret->key.bytes, s.key, sizeof(s.key));
    return true;
}
