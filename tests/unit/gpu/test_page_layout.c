/* gpu/page_layout.c: offsets worked by hand, the map against bytes worked by hand, and that it is a
 * bijection. */
#include "gpu/half_tile.h"
#include "gpu/page_layout.h"

#include <errno.h>
#include <string.h>

#include "tests/lib/test.h"

enum { N_CODES = 512, BYTES_MAX = 512 };

struct byte {
    unsigned at, value;
};

/* One code in an otherwise empty half-tile, and the only bytes that may then differ from zero. */
static void expect_bytes(unsigned b, enum side side, unsigned token, unsigned coord, unsigned code,
                         const struct byte want[3])
{
    uint8_t half_tile[BYTES_MAX] = {0};

    half_tile_set(half_tile, b, side, token, coord, code);
    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(half_tile[want[i].at], want[i].value);
        half_tile[want[i].at] = 0;
    }
    for (unsigned i = 0; i < BYTES_MAX; i++)
        CU_ASSERT_EQUAL(half_tile[i], 0);
}

/*
 * Width 8. Token 13, coordinate 3. K: j = 1, g = 5, t = 1, h = 1: lane 21, word [0][21], shift 8 + 16 = 24,
 * so byte 4 * 21 + 3 = 87. V: g = 3, 13 & 7 = 5: t = 2, h = 1: lane 14, shift 24: byte 4 * 14 + 3 = 59.
 */
static void test_width_8(void)
{
    expect_bytes(8, SIDE_K, 13, 3, 0xa7, (struct byte[3]){{87, 0xa7}});
    expect_bytes(8, SIDE_V, 13, 3, 0xa7, (struct byte[3]){{59, 0xa7}});
}

/*
 * Width 4. Token 45, coordinate 6. K: j = 5, g = 5, t = 3, h = 0: lane 23, word [1][23], shift 4: byte 4 * 55
 * = 220, high nibble. V: g = 6, 45 & 7 = 5: t = 2, h = 1: lane 26, word [1][26], shift 20: byte 4 * 58 + 2 =
 * 234, high nibble.
 */
static void test_width_4(void)
{
    expect_bytes(4, SIDE_K, 45, 6, 0x9, (struct byte[3]){{220, 0x90}});
    expect_bytes(4, SIDE_V, 45, 6, 0x9, (struct byte[3]){{234, 0x90}});
}

/*
 * Width 2. Token 30, coordinate 1. K: j = 3, g = 6, t = 0, h = 1: lane 24, shift 6 + 16 = 22: byte 98, bits 6
 * and 7. V: g = 1, 30 & 7 = 6: t = 3, h = 0: lane 7, shift 6: byte 28, bits 6 and 7.
 */
static void test_width_2(void)
{
    expect_bytes(2, SIDE_K, 30, 1, 2, (struct byte[3]){{98, 0x80}});
    expect_bytes(2, SIDE_V, 30, 1, 2, (struct byte[3]){{28, 0x80}});
}

/*
 * Width 1. Token 16, coordinate 5. K: j = 2, g = 0, t = 2, h = 1: lane 2, shift 2 + 8 = 10: byte 2 * 2 + 1 =
 * 5, bit 2. V: g = 5, 16 & 7 = 0: t = 0, h = 0: lane 20, shift 2: byte 40, bit 2. The last code of all is the
 * last bit of all.
 */
static void test_width_1(void)
{
    expect_bytes(1, SIDE_K, 16, 5, 1, (struct byte[3]){{5, 0x04}});
    expect_bytes(1, SIDE_V, 16, 5, 1, (struct byte[3]){{40, 0x04}});
    expect_bytes(1, SIDE_K, 63, 7, 1, (struct byte[3]){{63, 0x80}});
    expect_bytes(1, SIDE_V, 63, 7, 1, (struct byte[3]){{63, 0x80}});
}

/*
 * Seven bits: code 1011 01 1 of token 13, coordinate 3 over planes at 0, 256 and 384. K has lane 21, j = 1, h
 * = 1. Plane 4: word [0][21], shift 20: byte 86 = 0xb0. Plane 2: shift 18: byte 256 + 86, bits 2 and 3 = 01.
 * Plane 1: shift 9 of u16 word 21: byte 384 + 43, bit 1. V has lane 14: bytes 4 * 14 + 2 = 58, 256 + 58, 384
 * + 29.
 */
static void test_planes_of_seven(void)
{
    expect_bytes(7, SIDE_K, 13, 3, 0x5b, (struct byte[3]){{86, 0xb0}, {342, 0x04}, {427, 0x02}});
    expect_bytes(7, SIDE_V, 13, 3, 0x5b, (struct byte[3]){{58, 0xb0}, {314, 0x04}, {413, 0x02}});
}

/* Every code owns b bits of the 64 b bytes, no two codes share one, and none is left over. */
static void test_bijection(void)
{
    for (unsigned b = 1; b <= 8; b++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            uint8_t seen[BYTES_MAX] = {0};
            unsigned n_bits = 0;

            for (unsigned i = 0; i < N_CODES; i++) {
                uint8_t one[BYTES_MAX] = {0};

                half_tile_set(one, b, side, i / 8, i % 8, (1u << b) - 1);
                for (unsigned x = 0; x < BYTES_MAX; x++) {
                    CU_ASSERT_EQUAL(seen[x] & one[x], 0);
                    seen[x] |= one[x];
                    n_bits += (unsigned) __builtin_popcount(one[x]);
                }
            }
            CU_ASSERT_EQUAL(n_bits, N_CODES * b);
            for (unsigned x = 0; x < BYTES_MAX; x++)
                CU_ASSERT_EQUAL(seen[x], x < 64 * b ? 0xff : 0);
        }
}

/* What is set is got, whatever stood there and whatever is written beside it. */
static void test_set_get(void)
{
    for (unsigned b = 1; b <= 8; b++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            uint8_t half_tile[BYTES_MAX];
            unsigned codes[N_CODES];

            memset(half_tile, 0xa5, sizeof(half_tile));
            for (unsigned i = 0; i < N_CODES; i++) {
                codes[i] = (unsigned) test_rand_below(1u << b);
                half_tile_set(half_tile, b, side, i / 8, i % 8, codes[i]);
            }
            for (unsigned i = 0; i < N_CODES; i++)
                CU_ASSERT_EQUAL(half_tile_get(half_tile, b, side, i / 8, i % 8), codes[i]);
        }
}

/* ---- offsets ---- */

/* 2 layers, 3 heads, d = 34. Code bits per token by head-side: layer 0: 24+0, 8+16, 64+40; layer 1: 0+0,
 * 48+8, 8+8. */
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

const char test_suite[] = "layout";
const struct test_case test_cases[] = {
    TEST(test_width_8),         TEST(test_width_4),       TEST(test_width_2), TEST(test_width_1),
    TEST(test_planes_of_seven), TEST(test_bijection),     TEST(test_set_get), TEST(test_offsets_all_heads),
    TEST(test_offsets_shard),   TEST(test_shard_outside), TEST_END,
};
