/* Page headers: the byte layout of page.h, and every flipped bit. */
#include "proto/page.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

static struct page_header sample(void)
{
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .first_head = 0x0102,
        .n_heads = 0x0304,
        .first_position = 0x1122334455667740,
        .n_tokens = 64,
        .flags = PAGE_FLAG_FIRST,
        .payload_bytes = 0x99aabbcc,
        .payload_crc32c = 0xdeadbeef,
    };

    for (unsigned i = 0; i < 32; i++) {
        h.table_digest[i] = (uint8_t) (0x40 + i);
        h.model_digest[i] = (uint8_t) (0x80 + i);
    }
    for (unsigned i = 0; i < 16; i++)
        h.key.bytes[i] = (uint8_t) (0xc0 + i);
    return h;
}

static void test_layout(void)
{
    static const uint8_t start[] = {'K', 'V', 'P', 'G', 1, 0, 1, 0, 0x40, 0x41};
    static const uint8_t end[] = {
        0x02, 0x01, 0x04, 0x03, 64,   0,    1,    0,                /* 88: heads, tokens, flags */
        0x40, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,             /* 96: position */
        0xcc, 0xbb, 0xaa, 0x99, 0,    0,    0,    0,                /* 104: payload bytes */
        0xef, 0xbe, 0xad, 0xde, 0,    0,    0,    0,    0, 0, 0, 0, /* 112: payload CRC, zero */
    };
    struct page_header h = sample(), back;
    uint8_t b[128];
    uint32_t crc;

    page_header_store(&h, b);
    CU_ASSERT_EQUAL(memcmp(b, start, sizeof(start)), 0);
    CU_ASSERT_EQUAL(b[40], 0x80);
    CU_ASSERT_EQUAL(b[72], 0xc0);
    CU_ASSERT_EQUAL(memcmp(b + 88, end, sizeof(end)), 0);
    crc = crc32c(b, 124);
    CU_ASSERT_EQUAL(b[124] | b[125] << 8 | b[126] << 16 | (uint32_t) b[127] << 24, crc);
    CU_ASSERT_EQUAL(page_header_load(b, &back, NULL), 0);
    CU_ASSERT_EQUAL(memcmp(&back.table_digest, &h.table_digest, 32), 0);
    CU_ASSERT_EQUAL(memcmp(&back.key, &h.key, 16), 0);
    CU_ASSERT_EQUAL(back.first_head, h.first_head);
    CU_ASSERT_EQUAL(back.n_heads, h.n_heads);
    CU_ASSERT_EQUAL(back.first_position, h.first_position);
    CU_ASSERT_EQUAL(back.n_tokens, h.n_tokens);
    CU_ASSERT_EQUAL(back.flags, h.flags);
    CU_ASSERT_EQUAL(back.payload_bytes, h.payload_bytes);
    CU_ASSERT_EQUAL(back.payload_crc32c, h.payload_crc32c);
}

static void test_every_flipped_bit_is_refused(void)
{
    struct page_header h = sample(), back;
    struct errmsg e = {""};
    uint8_t b[128];

    page_header_store(&h, b);
    memset(&back, 0x5a, sizeof(back));
    for (unsigned bit = 0; bit < 128 * 8; bit++) {
        b[bit / 8] ^= (uint8_t) (1u << bit % 8);
        CU_ASSERT_EQUAL(page_header_load(b, &back, &e), -EBADMSG);
        CU_ASSERT(e.text[0] != '\0');
        b[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
    CU_ASSERT_EQUAL(back.n_tokens, 0x5a5a5a5a); /* untouched */
}

/* A header with another version, or with reserved bytes that are not zero, is
 * refused although its checksum matches. */
static void test_wrong_fields_under_a_right_checksum_are_refused(void)
{
    struct page_header h = sample(), back;
    uint8_t b[128];
    uint32_t crc;

    h.format_version = 2;
    page_header_store(&h, b);
    CU_ASSERT_EQUAL(page_header_load(b, &back, NULL), -EBADMSG);
    h.format_version = 1;
    page_header_store(&h, b);
    b[120] = 1;
    crc = crc32c(b, 124);
    memcpy(b + 124, &crc, 4);
    CU_ASSERT_EQUAL(page_header_load(b, &back, NULL), -EBADMSG);
}

const struct test_case test_cases[] = {
    TEST(test_layout),
    TEST(test_every_flipped_bit_is_refused),
    TEST(test_wrong_fields_under_a_right_checksum_are_refused),
    TEST_END,
};
const char test_suite[] = "page";
