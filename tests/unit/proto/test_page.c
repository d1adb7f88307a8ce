/* Page headers and CRC32C: published check values, the byte layout of page.h, every kind of damage. */
#include "proto/page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

static void test_crc32c_published(void)
{
    uint8_t zeros[32] = {0}, ones[32], up[32];

    memset(ones, 0xff, sizeof(ones));
    for (unsigned i = 0; i < 32; i++)
        up[i] = (uint8_t) i;
    CU_ASSERT_EQUAL(crc32c("123456789", 9), 0xe3069283u);
    /* RFC 3720, B.4 */
    CU_ASSERT_EQUAL(crc32c(zeros, 32), 0x8a9136aau);
    CU_ASSERT_EQUAL(crc32c(ones, 32), 0x62a8ab43u);
    CU_ASSERT_EQUAL(crc32c(up, 32), 0x46dd794eu);
    CU_ASSERT_EQUAL(crc32c("", 0), 0u);
}

/* Bit by bit, reflected polynomial 0x1EDC6F41. */
static uint32_t crc_slow(const uint8_t *p, size_t n)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (unsigned k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void test_crc32c_lengths(void)
{
    uint8_t data[600];

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t) test_rand();
    for (size_t n = 0; n < 520; n += 1 + n / 8)
        for (size_t off = 0; off < 9; off++)
            CU_ASSERT_EQUAL(crc32c(data + off, n), crc_slow(data + off, n));
}

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
    crc = crc_slow(b, 124);
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

/* A right checksum does not excuse another version or set reserved bytes. */
static void test_signed_nonsense_is_refused(void)
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
    TEST(test_crc32c_published),
    TEST(test_crc32c_lengths),
    TEST(test_layout),
    TEST(test_every_flipped_bit_is_refused),
    TEST(test_signed_nonsense_is_refused),
    TEST_END,
};
const char test_suite[] = "page";
