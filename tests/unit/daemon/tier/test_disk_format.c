/* Tests of daemon/tier/disk_format.c. */
#include "daemon/tier/disk_format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/tier/seal.h"
#include "proto/crc32c.h"
#include "tests/lib/test.h"

const char test_suite[] = "disk_format";

enum { SEGMENT_BYTES = 1 << 20 };

static struct disk_segment_head make_head(void)
{
    struct disk_segment_head h = {.number = 3, .generation = 77, .slot_bytes = 8192, .n_slots = 128};

    tier_group_init(&h.group, "uid-1000@gpu0");
    memset(h.group.table_digest, 0xab, sizeof(h.group.table_digest));
    h.group.first_head = 2;
    h.group.n_heads = 6;
    h.group.page_class = 1;
    h.group.page_bytes = 5000;
    return h;
}

static bool load_changed(uint8_t bytes[static DISK_SEGMENT_HEAD_BYTES], size_t at, const void *value,
                         size_t n)
{
    uint8_t changed[DISK_SEGMENT_HEAD_BYTES];
    struct disk_segment_head h;
    uint32_t crc;

    memcpy(changed, bytes, sizeof(changed));
    memcpy(changed + at, value, n);
    crc = crc32c(changed, 252);
    memcpy(changed + 252, &crc, sizeof(crc));
    return disk_segment_head_load(changed, 3, SEGMENT_BYTES, &h);
}

static void test_segment_head(void)
{
    struct disk_segment_head h = make_head(), back;
    uint8_t bytes[DISK_SEGMENT_HEAD_BYTES];

    disk_segment_head_store(&h, bytes);
    CU_ASSERT_EQUAL(memcmp(bytes, "KVDS\3\0\0\0\x4d\0", 10), 0);
    CU_ASSERT_EQUAL(memcmp(bytes + 80, "uid-1000@gpu0\0", 14), 0);
    CU_ASSERT_TRUE_FATAL(disk_segment_head_load(bytes, 3, SEGMENT_BYTES, &back));
    CU_ASSERT(back.number == 3 && back.generation == 77 && back.slot_bytes == 8192 && back.n_slots == 128);
    CU_ASSERT_TRUE(tier_group_equal(&back.group, &h.group));
    CU_ASSERT_FALSE(disk_segment_head_load(bytes, 4, SEGMENT_BYTES, &back)); /* copied from another area */
    CU_ASSERT_FALSE(disk_segment_head_load(bytes, 3, SEGMENT_BYTES / 2, &back));
    for (size_t bit = 0; bit < 8 * (size_t) DISK_SEGMENT_HEAD_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t) (1u << bit % 8);
        CU_ASSERT_FALSE_FATAL(disk_segment_head_load(bytes, 3, SEGMENT_BYTES, &back));
        bytes[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
}

/* Values that no tier writes, with a checksum that is right. */
static void test_hostile_segment_heads(void)
{
    const uint64_t zero = 0, large = UINT64_MAX, odd = 8193, one_page = 4096;
    const uint32_t many = DISK_SLOTS_MAX + 1, most = UINT32_MAX;
    const uint8_t class = 2;
    struct disk_segment_head h = make_head();
    uint8_t bytes[DISK_SEGMENT_HEAD_BYTES];

    disk_segment_head_store(&h, bytes);
    CU_ASSERT_TRUE(load_changed(bytes, 8, &(uint64_t){78}, 8));
    CU_ASSERT_FALSE(load_changed(bytes, 8, &zero, 8)); /* generation */
    CU_ASSERT_FALSE(load_changed(bytes, 8, &large, 8));
    CU_ASSERT_FALSE(load_changed(bytes, 16, &zero, 8)); /* slot bytes */
    CU_ASSERT_FALSE(load_changed(bytes, 16, &odd, 8));
    CU_ASSERT_FALSE(load_changed(bytes, 16, &one_page, 8)); /* less than the sealed page */
    CU_ASSERT_FALSE(load_changed(bytes, 16, &large, 8));
    CU_ASSERT_FALSE(load_changed(bytes, 24, &large, 8)); /* page bytes */
    CU_ASSERT_FALSE(load_changed(bytes, 32, &zero, 4));  /* slots */
    CU_ASSERT_FALSE(load_changed(bytes, 32, &(uint32_t){129}, 4));
    CU_ASSERT_FALSE(load_changed(bytes, 32, &many, 4));
    CU_ASSERT_FALSE(load_changed(bytes, 32, &most, 4));
    CU_ASSERT_FALSE(load_changed(bytes, 38, &zero, 2)); /* heads */
    CU_ASSERT_FALSE(load_changed(bytes, 40, &class, 1));
    CU_ASSERT_FALSE(load_changed(bytes, 80, &zero, 8)); /* tenant */
    CU_ASSERT_FALSE(load_changed(bytes, 80, "a\nb", 4));
    CU_ASSERT_FALSE(load_changed(bytes, 80, "a\0b", 4));
    CU_ASSERT_FALSE(load_changed(bytes, 80, "\xc3\xa4", 3));
    CU_ASSERT_FALSE(load_changed(bytes, 41, &class, 1)); /* bytes that are zeros in this version */
    CU_ASSERT_FALSE(load_changed(bytes, 251, &class, 1));
    memset(bytes + 80, 'a', TIER_TENANT_BYTES); /* no zero at the end */
    CU_ASSERT_FALSE(load_changed(bytes, 80, "a", 1));
}

static void test_records(void)
{
    struct disk_segment_head h = make_head();
    struct disk_record r = {.key = {{5, 6, 7}}, .generation = 77, .slot = 12}, back;
    uint8_t bytes[DISK_RECORD_BYTES], zeros[DISK_RECORD_BYTES] = {0};

    disk_record_store(&r, 3, bytes);
    CU_ASSERT_TRUE_FATAL(disk_record_load(bytes, &h, 12, &back));
    CU_ASSERT(back.slot == 12 && back.generation == 77 && memcmp(&back.key, &r.key, sizeof(r.key)) == 0);
    CU_ASSERT_FALSE(disk_record_load(bytes, &h, 13, &back)); /* swapped slots */
    CU_ASSERT_FALSE(disk_record_load(zeros, &h, 0, &back));
    for (size_t bit = 0; bit < 8 * (size_t) DISK_RECORD_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t) (1u << bit % 8);
        CU_ASSERT_FALSE_FATAL(disk_record_load(bytes, &h, 12, &back));
        bytes[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
    h.generation = 78; /* a later life of the segment */
    CU_ASSERT_FALSE(disk_record_load(bytes, &h, 12, &back));
    h.generation = 77;
    h.number = 4; /* another segment */
    CU_ASSERT_FALSE(disk_record_load(bytes, &h, 12, &back));
}

static void test_folder_head(void)
{
    struct disk_folder_head h = {.version = DISK_VERSION,
                                 .page_format = PAGE_FORMAT_VERSION,
                                 .fleet = {1, 2, 3},
                                 .segment_bytes = SEGMENT_BYTES,
                                 .counter = 77},
                            back;
    uint8_t bytes[DISK_FOLDER_HEAD_BYTES];
    struct errmsg e = {""};
    uint32_t crc;

    disk_folder_head_store(&h, bytes);
    CU_ASSERT_EQUAL_FATAL(disk_folder_head_load(bytes, &back, &e), 0);
    CU_ASSERT_EQUAL(back.counter, 77);
    CU_ASSERT(back.segment_bytes == SEGMENT_BYTES && memcmp(back.fleet, h.fleet, sizeof(h.fleet)) == 0);
    for (size_t byte = 0; byte < DISK_FOLDER_HEAD_BYTES; byte++) {
        if (byte == DISK_COUNTER_OFFSET) { /* written alone: the checksum does not cover it */
            byte += sizeof(h.counter) - 1;
            continue;
        }
        bytes[byte] ^= 0x10;
        CU_ASSERT_EQUAL_FATAL(disk_folder_head_load(bytes, &back, &e),
                              byte >= 4 && byte < 8 ? -EPROTO : -EBADMSG);
        bytes[byte] ^= 0x10;
    }
    h.counter = 0; /* as earlier versions write it */
    disk_folder_head_store(&h, bytes);
    CU_ASSERT_EQUAL_FATAL(disk_folder_head_load(bytes, &back, &e), 0);
    CU_ASSERT_EQUAL(back.counter, 0);
    bytes[2000] = 1; /* a field of a later kvcobrad, with the checksum */
    crc = crc32c(bytes, 4092);
    memcpy(bytes + 4092, &crc, sizeof(crc));
    CU_ASSERT_EQUAL(disk_folder_head_load(bytes, &back, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "does not know"));
    h.segment_bytes = SEGMENT_BYTES + 1;
    disk_folder_head_store(&h, bytes);
    CU_ASSERT_EQUAL(disk_folder_head_load(bytes, &back, &e), -EBADMSG);
    h.segment_bytes = DISK_SEGMENT_BYTES_MAX * 2;
    disk_folder_head_store(&h, bytes);
    CU_ASSERT_EQUAL(disk_folder_head_load(bytes, &back, &e), -EBADMSG);
    h.segment_bytes = DISK_SEGMENT_BYTES_MIN / 2;
    disk_folder_head_store(&h, bytes);
    CU_ASSERT_EQUAL(disk_folder_head_load(bytes, &back, &e), -EBADMSG);
}

static void test_sizes(void)
{
    CU_ASSERT_EQUAL(disk_slot_bytes(5000, 512, SEGMENT_BYTES), 8192);
    CU_ASSERT_EQUAL(disk_slot_bytes(4096 - 64, 512, SEGMENT_BYTES), 4096);
    CU_ASSERT_EQUAL(disk_slot_bytes(4096 - 63, 512, SEGMENT_BYTES), 8192);
    CU_ASSERT_EQUAL(disk_slot_bytes(5000, 65536, SEGMENT_BYTES), 65536);
    CU_ASSERT_EQUAL(disk_slot_bytes(SEGMENT_BYTES - 64, 4096, SEGMENT_BYTES), SEGMENT_BYTES);
    CU_ASSERT_EQUAL(disk_slot_bytes(SEGMENT_BYTES - 63, 4096, SEGMENT_BYTES), 0);
    CU_ASSERT_EQUAL(disk_slot_bytes(UINT64_MAX, 4096, SEGMENT_BYTES), 0);
    CU_ASSERT_EQUAL(disk_slot_bytes(SEAL_PAGE_BYTES_MAX, 4096, UINT64_MAX), SEAL_PAGE_BYTES_MAX + 4096);
    CU_ASSERT_EQUAL(disk_slot_bytes(SEAL_PAGE_BYTES_MAX + 1, 4096, UINT64_MAX), 0);
    /* areas do not overlap: the last record of one ends before the head of the next */
    CU_ASSERT(disk_record_offset(0, SEGMENT_BYTES / 4096 - 1, SEGMENT_BYTES) + DISK_RECORD_BYTES <=
              disk_segment_head_offset(1, SEGMENT_BYTES));
    CU_ASSERT(disk_record_offset(6, DISK_SLOTS_MAX - 1, DISK_SEGMENT_BYTES_MAX) + DISK_RECORD_BYTES <=
              disk_segment_head_offset(7, DISK_SEGMENT_BYTES_MAX));
    CU_ASSERT_EQUAL(disk_segment_head_offset(0, SEGMENT_BYTES), 4096);
}

const struct test_case test_cases[] = {
    TEST(test_segment_head), TEST(test_hostile_segment_heads),
    TEST(test_records),      TEST(test_folder_head),
    TEST(test_sizes),        TEST_END,
};
