/* Which pages may be published, field by field; the header's own checks are tests/unit/proto/test_page.c. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "alloc/table/table_exact.h"
#include "base/errmsg.h"
#include "daemon/store/page_check.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "page_check";

static struct table *table;
static struct page_layout layout;
static const uint8_t model[DIGEST_BYTES] = {3, 1, 4};
static const struct chunk_key key = {{2, 7, 1, 8}};

static struct page_header good_header(unsigned page_class)
{
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .key = key,
        .first_head = 1,
        .n_heads = 2,
        .first_position = page_class == PAGE_FIRST ? 0 : 640,
        .n_tokens = CHUNK_TOKENS,
        .flags = page_class == PAGE_FIRST ? PAGE_FLAG_FIRST : 0,
        .payload_bytes = layout.payload_bytes[page_class],
    };

    memcpy(h.table_digest, table->digest, DIGEST_BYTES);
    memcpy(h.model_digest, model, DIGEST_BYTES);
    return h;
}

static void setup(void)
{
    struct geometry g = random_table_geometry(2, 8, 4, 32);
    void *bytes;
    size_t n;

    assert(random_table_bytes(&g, 1, 3.0, true, &bytes, &n) == 0);
    assert(table_parse(bytes, n, &table, NULL) == 0);
    free(bytes);
    assert(page_layout_init(&layout, table, (struct shard){1, 2}) == 0);
}

static void teardown(void)
{
    page_layout_deinit(&layout);
    table = table_unref(table);
}

/*
 * Checks a page of zeros (any bits are codes; zero is a finite sink) with @h and a right checksum.
 * @spoil may change it.
 */
static int check(struct page_header h, unsigned page_class, void (*spoil)(uint8_t *payload), const char *word)
{
    struct page_expectation x = {
        .layout = &layout, .model_digest = model, .key = &key, .page_class = page_class};
    uint8_t *page = calloc(1, layout.page_bytes[page_class]);
    struct errmsg e = {""};
    uint32_t crc = 7;
    int r;

    assert(page);
    if (spoil)
        spoil(page + PAGE_HEADER_BYTES);
    h.payload_crc32c ^= crc32c(page + PAGE_HEADER_BYTES, layout.payload_bytes[page_class]);
    page_header_store(&h, page);
    r = page_check(page, &x, &crc, &e);
    if (r < 0) {
        CU_ASSERT_EQUAL(crc, 7);
        CU_ASSERT(word && strstr(e.text, word));
    } else {
        CU_ASSERT_EQUAL(crc, h.payload_crc32c);
    }
    free(page);
    return r;
}

static void test_good_pages(void)
{
    setup();
    for (unsigned class = 0; class < 2; class ++)
        CU_ASSERT_EQUAL(check(good_header(class), class, NULL, NULL), 0);
    teardown();
}

static void test_every_field(void)
{
    struct page_header h;

    setup();
#define WRONG(field, value, word)                                                                            \
    h = good_header(PAGE_REST);                                                                              \
    h.field = (value);                                                                                       \
    CU_ASSERT_EQUAL(check(h, PAGE_REST, NULL, word), -EBADMSG)
    WRONG(codec_id, 2, "codec");
    WRONG(table_digest[31], (uint8_t) (table->digest[31] ^ 1), "table");
    WRONG(model_digest[0], 0, "model");
    WRONG(key.bytes[15], 1, "key");
    WRONG(first_head, 0, "heads");
    WRONG(n_heads, 3, "heads");
    WRONG(n_tokens, 63, "tokens");
    WRONG(flags, PAGE_FLAG_FIRST, "flags");
    WRONG(flags, 2, "flags");
    WRONG(first_position, 0, "position");
    WRONG(first_position, 65, "position");
    WRONG(payload_bytes, layout.payload_bytes[PAGE_REST] - 1, "payload bytes");
    WRONG(payload_bytes, UINT64_MAX, "payload bytes");
    WRONG(payload_crc32c, 1, "checksum");
#undef WRONG
    h = good_header(PAGE_FIRST);
    h.first_position = 64;
    CU_ASSERT_EQUAL(check(h, PAGE_FIRST, NULL, "position"), -EBADMSG);
    CU_ASSERT_EQUAL(check(good_header(PAGE_REST), PAGE_FIRST, NULL, "flags"), -EBADMSG);
    teardown();
}

static void first_sink_is_nan(uint8_t *payload)
{
    payload[layout.sinks_off] = 1;
    payload[layout.sinks_off + 1] = 0x7c;
}

static void last_sink_is_minus_infinity(uint8_t *payload)
{
    payload[layout.payload_bytes[PAGE_FIRST] - 1] = 0xfc;
}

static void last_sink_is_large(uint8_t *payload)
{
    payload[layout.payload_bytes[PAGE_FIRST] - 1] = 0x7b; /* 0x7b00 = 57344 */
}

static void codes_are_all_ones(uint8_t *payload)
{
    memset(payload, 0xff, layout.sinks_off);
}

static void test_sinks(void)
{
    setup();
    CU_ASSERT_EQUAL(check(good_header(PAGE_FIRST), PAGE_FIRST, first_sink_is_nan, "sinks"), -EBADMSG);
    CU_ASSERT_EQUAL(check(good_header(PAGE_FIRST), PAGE_FIRST, last_sink_is_minus_infinity, "sinks"),
                    -EBADMSG);
    CU_ASSERT_EQUAL(check(good_header(PAGE_FIRST), PAGE_FIRST, last_sink_is_large, NULL), 0);
    CU_ASSERT_EQUAL(check(good_header(PAGE_FIRST), PAGE_FIRST, codes_are_all_ones, NULL), 0);
    teardown();
}

static void last_number_is_nan(uint8_t *payload)
{
    payload[layout.payload_bytes[PAGE_REST] - 1] = 0x7f; /* 0x7fc00000 */
    payload[layout.payload_bytes[PAGE_REST] - 2] = 0xc0;
}

/* A page of an exact table has codec 2, exactly the bytes of its vectors, and finite numbers. */
static void test_exact(void)
{
    const struct exact_form form = {.type = EXACT_F32};
    struct geometry g = random_table_geometry(2, 8, 4, 32);
    struct page_header h;
    void *bytes;
    size_t n;

    assert(table_exact_build(&g, model, &form, &bytes, &n, NULL) == 0);
    assert(table_parse(bytes, n, &table, NULL) == 0);
    free(bytes);
    assert(page_layout_init(&layout, table, (struct shard){1, 2}) == 0);
    for (unsigned class = 0; class < 2; class ++) {
        h = good_header(class);
        CU_ASSERT_EQUAL(check(h, class, NULL, "codec 1 is not 2"), -EBADMSG);
        h.codec_id = PAGE_CODEC_BYTES;
        CU_ASSERT_EQUAL(check(h, class, NULL, NULL), 0);
        CU_ASSERT_EQUAL(check(h, class, last_number_is_nan, "finite"), -EBADMSG);
        h.payload_bytes -= 4;
        CU_ASSERT_EQUAL(check(h, class, NULL, "payload bytes"), -EBADMSG);
        h.payload_bytes += 4;
        h.payload_crc32c = 1;
        CU_ASSERT_EQUAL(check(h, class, NULL, "checksum"), -EBADMSG);
    }
    CU_ASSERT_EQUAL(layout.payload_bytes[PAGE_FIRST], 2 * 2 * 2 * 64 * 32 * 4);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_good_pages), TEST(test_every_field), TEST(test_sinks), TEST(test_exact), TEST_END,
};
