/* Files of exported pages: the layout of page_file.h, and every flipped bit. */
#include "proto/page_file.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "page_file";

enum { PAGE_BYTES = 600, RECORD_BYTES = 16 + 64 + PAGE_BYTES };

static const uint8_t index_key[INDEX_KEY_BYTES] = {5, 6, 7};
static const struct chunk_key key = {{1, 2, 3, 4, 5, 6, 7, 8, 9}};

static struct page_file_header sample(void)
{
    struct page_file_header h = {.first_head = 0x0102, .n_heads = 0x0304, .n_pages = 0x1122334455667788};

    for (unsigned i = 0; i < 32; i++) {
        h.table_digest[i] = (uint8_t) (0x40 + i);
        h.model_digest[i] = (uint8_t) (0x80 + i);
    }
    for (unsigned i = 0; i < 16; i++)
        h.fleet[i] = (uint8_t) (0xc0 + i);
    return h;
}

static void test_layout(void)
{
    static const uint8_t start[] = {'K', 'V', 'P',  'F',  1,    0,    2,    1,    4,    3,    0,    0,   0, 0,
                                    0,   0,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x40, 0x41};
    struct page_file_header h = sample(), back;
    uint8_t b[PAGE_FILE_HEADER_BYTES];

    page_file_header_store(&h, b);
    CU_ASSERT_EQUAL(memcmp(b, start, sizeof(start)), 0);
    CU_ASSERT_EQUAL(b[56], 0x80);
    CU_ASSERT_EQUAL(b[88], 0xc0);
    for (size_t i = 104; i < 124; i++)
        CU_ASSERT_EQUAL(b[i], 0);
    CU_ASSERT_EQUAL(b[124] | b[125] << 8 | b[126] << 16 | (uint32_t) b[127] << 24, crc32c(b, 124));
    CU_ASSERT_EQUAL(page_file_header_load(b, sizeof(b), &back, NULL), 0);
    CU_ASSERT(back.first_head == h.first_head && back.n_heads == h.n_heads && back.n_pages == h.n_pages);
    CU_ASSERT_EQUAL(memcmp(back.table_digest, h.table_digest, 32), 0);
    CU_ASSERT_EQUAL(memcmp(back.model_digest, h.model_digest, 32), 0);
    CU_ASSERT_EQUAL(memcmp(back.fleet, h.fleet, 16), 0);
}

static void check_refused(const uint8_t *b, size_t n, const char *words)
{
    struct page_file_header h;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(page_file_header_load(b, n, &h, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, words));
}

static void store_crc(uint8_t b[static PAGE_FILE_HEADER_BYTES])
{
    uint32_t crc = crc32c(b, 124);

    memcpy(b + 124, &crc, sizeof(crc));
}

static void test_damaged_headers(void)
{
    struct page_file_header h = sample();
    uint8_t b[PAGE_FILE_HEADER_BYTES], bad[PAGE_FILE_HEADER_BYTES];

    page_file_header_store(&h, b);
    for (size_t bit = 0; bit < 8 * sizeof(b); bit++) {
        memcpy(bad, b, sizeof(b));
        bad[bit / 8] ^= (uint8_t) (1u << bit % 8);
        check_refused(bad, sizeof(bad), bit < 32 ? "not a file of pages" : "damaged");
    }
    for (size_t n = 0; n < sizeof(b); n++)
        check_refused(b, n, n < 4 ? "not a file of pages" : "was cut");

    /* with a right checksum */
    memcpy(bad, b, sizeof(b));
    bad[4] = 2;
    store_crc(bad);
    check_refused(bad, sizeof(bad), "format 2");
    for (size_t i = 10; i < 124; i++) {
        if (i == 16)
            i = 104; /* behind the digests */
        memcpy(bad, b, sizeof(b));
        bad[i] = 1;
        store_crc(bad);
        check_refused(bad, sizeof(bad), "not valid");
    }
    h.n_pages = 0;
    page_file_header_store(&h, bad);
    check_refused(bad, sizeof(bad), "not valid");
    h = sample();
    h.n_heads = 0;
    page_file_header_store(&h, bad);
    check_refused(bad, sizeof(bad), "not valid");
}

/* ---- pages ---- */

static uint8_t page[PAGE_BYTES], record[RECORD_BYTES], opened[PAGE_BYTES];
static struct page_file_keys keys;

static void seal_one(void)
{
    struct page_header h = {.format_version = PAGE_FORMAT_VERSION,
                            .codec_id = PAGE_CODEC_HALF_TILES,
                            .key = key,
                            .n_heads = 1,
                            .n_tokens = 64,
                            .payload_bytes = PAGE_BYTES - 128};

    for (size_t i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t) test_rand();
    page_header_store(&h, page);
    page_file_keys_derive(index_key, &keys);
    page_file_seal(&keys, &key, page, PAGE_BYTES, record);
}

static int open_one(const struct page_file_keys *k)
{
    struct chunk_key got = {{0}};
    struct errmsg e = {""};
    int r;

    memset(opened, 0xaa, sizeof(opened));
    r = page_file_open(k, record, opened, PAGE_BYTES, &got, &e);
    CU_ASSERT_EQUAL(r == 0, e.text[0] == '\0');
    if (r == 0) {
        CU_ASSERT_FATAL(memcmp(opened, page, PAGE_BYTES) == 0 && memcmp(&got, &key, sizeof(key)) == 0);
        return r;
    }
    for (size_t i = 0; i < PAGE_BYTES; i++) /* no byte of a page that does not open */
        CU_ASSERT_FATAL(opened[i] == 0 || opened[i] == 0xaa);
    return r;
}

static void test_pages(void)
{
    struct page_file_keys other;
    uint8_t other_index_key[INDEX_KEY_BYTES] = {5, 6, 8};

    seal_one();
    CU_ASSERT_EQUAL(page_file_record_bytes(PAGE_BYTES), RECORD_BYTES);
    CU_ASSERT_EQUAL(open_one(&keys), 0);
    for (size_t bit = 0; bit < 8 * (size_t) RECORD_BYTES; bit++) {
        record[bit / 8] ^= (uint8_t) (1u << bit % 8);
        CU_ASSERT_EQUAL_FATAL(open_one(&keys), -EBADMSG);
        record[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
    page_file_keys_derive(other_index_key, &other);
    CU_ASSERT_NOT_EQUAL(memcmp(other.fleet, keys.fleet, sizeof(keys.fleet)), 0);
    CU_ASSERT_EQUAL(open_one(&other), -EBADMSG);
}

/* The keys are those that libsodium derives; neither tells the index key. */
static void test_keys(void)
{
    uint8_t secret[32], fleet[16];

    page_file_keys_derive(index_key, &keys);
    CU_ASSERT_EQUAL(
        crypto_generichash(secret, 32, (const uint8_t *) "kvcobra seal key of files 1", 27, index_key, 32),
        0);
    CU_ASSERT_EQUAL(
        crypto_generichash(fleet, 16, (const uint8_t *) "kvcobra fleet of files 1", 24, index_key, 32), 0);
    CU_ASSERT_EQUAL(memcmp(secret, keys.secret, 32), 0);
    CU_ASSERT_EQUAL(memcmp(fleet, keys.fleet, 16), 0);
}

const struct test_case test_cases[] = {
    TEST(test_layout), TEST(test_damaged_headers), TEST(test_pages), TEST(test_keys), TEST_END,
};
