/* gpu/page_layout.c: offsets worked by hand, and shards that are refused. */
#include "gpu/page_layout.h"

#include <errno.h>
#include <string.h>

#include "tests/lib/test.h"

/* 2 layers, 3 heads, d = 34. Code bits per token by head and side: layer 0: 24+0, 8+16, 64+40; layer 1:
 * 0+0, 48+8, 8+8. */
static struct table small_table(struct codec codecs[12])
{
    static const uint16_t bits[12] = {24, 0, 8, 16, 64, 40, 0, 0, 48, 8, 8, 8};

    for (int i = 0; i < 12; i++)
        codecs[i] = (struct codec){.code_bits = bits[i]};
    return (struct table){
        .geometry = {.n_layers = 2, .n_heads = 6, .n_kv_heads = 3, .d = 34},
        .n_sink = 4,
        .codecs = codecs,
    };
}

/* 8 bytes per bit of code width: 24 bits of a token are 192 bytes of a block. */
static void test_offsets_all_heads(void)
{
    struct codec codecs[12];
    struct table t = small_table(codecs);
    struct page_layout l;

    CU_ASSERT_EQUAL_FATAL(page_layout_init(&l, &t, (struct shard){0, 3}), 0);
    CU_ASSERT_EQUAL(page_block_off(&l, 0, 0), 0);
    CU_ASSERT_EQUAL(page_block_off(&l, 0, 1), 192);
    CU_ASSERT_EQUAL(page_block_off(&l, 0, 2), 384);
    CU_ASSERT_EQUAL(page_block_off(&l, 1, 0), 1216);
    CU_ASSERT_EQUAL(page_block_off(&l, 1, 1), 1216);
    CU_ASSERT_EQUAL(page_block_off(&l, 1, 2), 1664);
    CU_ASSERT_EQUAL(l.block_off[6], 1792);
    CU_ASSERT_EQUAL(page_v_off(&codecs[4]), 512);
    /* sinks: 2 layers x 3 heads x 2 sides x 4 rows x 34 x 2 bytes = 3264 */
    CU_ASSERT_EQUAL(l.payload_bytes[PAGE_REST], 1792);
    CU_ASSERT_EQUAL(l.payload_bytes[PAGE_FIRST], 1792 + 3264);
    CU_ASSERT_EQUAL(l.page_bytes[PAGE_FIRST], 5184);
    CU_ASSERT_EQUAL(l.slot_bytes[PAGE_FIRST], 5248); /* 41 x 128 */
    CU_ASSERT_EQUAL(l.slot_bytes[PAGE_REST], 1920);
    /* row of (1, 2, V): number (1 x 3 + 2) x 2 + 1 = 11 of 272 bytes each */
    CU_ASSERT_EQUAL(page_sink_off(&l, 1, 2, SIDE_V), 1792 + 11 * 272);
    page_layout_deinit(&l);
    CU_ASSERT_PTR_NULL(l.block_off);
}

static void test_offsets_shard(void)
{
    struct codec codecs[12];
    struct table t = small_table(codecs);
    struct page_layout l;

    CU_ASSERT_EQUAL_FATAL(page_layout_init(&l, &t, (struct shard){1, 1}), 0);
    CU_ASSERT_EQUAL(page_block_off(&l, 0, 0), 0);
    CU_ASSERT_EQUAL(page_block_off(&l, 1, 0), 192);
    CU_ASSERT_EQUAL(l.payload_bytes[PAGE_REST], 192 + 448);
    CU_ASSERT_EQUAL(page_sink_off(&l, 1, 0, SIDE_K), 640 + 2 * 272);
    page_layout_deinit(&l);
}

static void test_shard_outside(void)
{
    static const struct shard bad[] = {{0, 0}, {0, 4}, {3, 1}, {2, 2}, {UINT32_MAX, 2}, {1, UINT32_MAX}};
    struct codec codecs[12];
    struct table t = small_table(codecs);
    struct page_layout l = {.sinks_off = 77};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT_EQUAL(page_layout_init(&l, &t, bad[i]), -EINVAL);
    CU_ASSERT_EQUAL(l.sinks_off, 77);
}

/* Values that are predicted from the keys of their whole layer need every head in the page. */
static void test_shard_without_predicting_heads(void)
{
    struct codec codecs[12];
    struct table t = small_table(codecs);
    struct page_layout l = {.sinks_off = 77};

    t.v_from = PREDICT_LAYER;
    CU_ASSERT_EQUAL(page_layout_init(&l, &t, (struct shard){0, 2}), -EINVAL);
    CU_ASSERT_EQUAL(page_layout_init(&l, &t, (struct shard){1, 2}), -EINVAL);
    CU_ASSERT_EQUAL(l.sinks_off, 77);
    CU_ASSERT_EQUAL(page_layout_init(&l, &t, (struct shard){0, 3}), 0);
    page_layout_deinit(&l);
}

const char test_suite[] = "page_layout";
const struct test_case test_cases[] = {
    TEST(test_offsets_all_heads),
    TEST(test_offsets_shard),
    TEST(test_shard_outside),
    TEST(test_shard_without_predicting_heads),
    TEST_END,
};
