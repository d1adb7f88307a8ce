/* gpu/half_tile.c: single codes against bytes worked by hand, and that their map is a bijection; then whole
 * half-tiles and the blocks of gpu/cpu/block.c against single codes, bit for bit. */
#include "gpu/half_tile.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/codec.h"
#include "tests/lib/half_tile_code.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/memory_table.h"

/* ---- single codes ---- */

enum { N_CODES = 512, BYTES_MAX = 512 };

struct byte {
    unsigned at, value;
};

/* One code in an otherwise empty half-tile, and the only bytes that may then differ from zero. */
static void expect_bytes(unsigned b, enum side side, unsigned token, unsigned coord, unsigned code,
                         const struct byte expected[3])
{
    uint8_t half_tile[BYTES_MAX] = {0};

    half_tile_set(half_tile, b, side, token, coord, code);
    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(half_tile[expected[i].at], expected[i].value);
        half_tile[expected[i].at] = 0;
    }
    for (unsigned i = 0; i < BYTES_MAX; i++)
        CU_ASSERT_EQUAL(half_tile[i], 0);
}

/*
 * Width 8. Token 13, coordinate 3.
 *     K: j = 1, g = 5, t = 1, h = 1: lane 21, word [0][21], shift 8 + 16 = 24: byte 4 * 21 + 3 = 87
 *     V: g = 3, 13 & 7 = 5: t = 2, h = 1: lane 14, shift 24: byte 4 * 14 + 3 = 59
 */
static void test_width_8(void)
{
    expect_bytes(8, SIDE_K, 13, 3, 0xa7, (struct byte[3]){{87, 0xa7}});
    expect_bytes(8, SIDE_V, 13, 3, 0xa7, (struct byte[3]){{59, 0xa7}});
}

/*
 * Width 4. Token 45, coordinate 6.
 *     K: j = 5, g = 5, t = 3, h = 0: lane 23, word [1][23], shift 4: byte 4 * 55 = 220, high nibble
 *     V: g = 6, 45 & 7 = 5: t = 2, h = 1: lane 26, word [1][26], shift 20: byte 4 * 58 + 2 = 234, high nibble
 */
static void test_width_4(void)
{
    expect_bytes(4, SIDE_K, 45, 6, 0x9, (struct byte[3]){{220, 0x90}});
    expect_bytes(4, SIDE_V, 45, 6, 0x9, (struct byte[3]){{234, 0x90}});
}

/*
 * Width 2. Token 30, coordinate 1.
 *     K: j = 3, g = 6, t = 0, h = 1: lane 24, shift 6 + 16 = 22: byte 98, bits 6 and 7
 *     V: g = 1, 30 & 7 = 6: t = 3, h = 0: lane 7, shift 6: byte 28, bits 6 and 7
 */
static void test_width_2(void)
{
    expect_bytes(2, SIDE_K, 30, 1, 2, (struct byte[3]){{98, 0x80}});
    expect_bytes(2, SIDE_V, 30, 1, 2, (struct byte[3]){{28, 0x80}});
}

/*
 * Width 1. Token 16, coordinate 5.
 *     K: j = 2, g = 0, t = 2, h = 1: lane 2, shift 2 + 8 = 10: byte 2 * 2 + 1 = 5, bit 2
 *     V: g = 5, 16 & 7 = 0: t = 0, h = 0: lane 20, shift 2: byte 40, bit 2
 * The last code is the last bit of the half-tile.
 */
static void test_width_1(void)
{
    expect_bytes(1, SIDE_K, 16, 5, 1, (struct byte[3]){{5, 0x04}});
    expect_bytes(1, SIDE_V, 16, 5, 1, (struct byte[3]){{40, 0x04}});
    expect_bytes(1, SIDE_K, 63, 7, 1, (struct byte[3]){{63, 0x80}});
    expect_bytes(1, SIDE_V, 63, 7, 1, (struct byte[3]){{63, 0x80}});
}

/*
 * Seven bits: code 1011 01 1 of token 13, coordinate 3. Planes begin at 0, 256 and 384.
 *     K has lane 21, j = 1, h = 1
 *       plane 4: word [0][21], shift 20: byte 86 = 0xb0
 *       plane 2: shift 18: byte 256 + 86, bits 2 and 3 = 01
 *       plane 1: shift 9 of u16 word 21: byte 384 + 43, bit 1
 *     V has lane 14: bytes 4 * 14 + 2 = 58, 256 + 58, 384 + 29
 */
static void test_planes_of_seven(void)
{
    expect_bytes(7, SIDE_K, 13, 3, 0x5b, (struct byte[3]){{86, 0xb0}, {342, 0x04}, {427, 0x02}});
    expect_bytes(7, SIDE_V, 13, 3, 0x5b, (struct byte[3]){{58, 0xb0}, {314, 0x04}, {413, 0x02}});
}

/* Every code owns b bits of the 64 b bytes, no two codes share a bit, and no bit is left over. */
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

/* get returns what set stored, whatever the half-tile held before and whatever is stored beside it. */
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

/* ---- whole half-tiles and blocks ---- */

static void random_bytes(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t) test_rand();
}

/* Index of token @n, coordinate @c in fragment order. */
static size_t fragment_index(enum side side, unsigned n, unsigned c)
{
    return side == SIDE_K ? 8 * n + c : 64 * (n / 8) + 8 * c + n % 8;
}

/* Any bytes are a valid half-tile, so random bytes reach every code. Odd addresses are allowed. */
static void test_unpack(void)
{
    uint8_t bytes[512 + 1], codes[HALF_TILE_CODES + 1];

    for (unsigned b = 1; b <= 8; b++)
        for (int side = SIDE_K; side <= SIDE_V; side++)
            for (unsigned odd = 0; odd < 2; odd++) {
                random_bytes(bytes, sizeof(bytes));
                half_tile_unpack(bytes + odd, b, codes + odd);
                for (unsigned i = 0; i < HALF_TILE_CODES; i++)
                    CU_ASSERT_EQUAL(codes[odd + fragment_index(side, i / 8, i % 8)],
                                    half_tile_get(bytes + odd, b, side, i / 8, i % 8));
            }
}

static void test_pack(void)
{
    uint8_t codes[HALF_TILE_CODES], expected[512], got[512];

    for (unsigned b = 1; b <= 8; b++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            random_bytes(expected, sizeof(expected));
            random_bytes(got, sizeof(got));
            for (unsigned i = 0; i < HALF_TILE_CODES; i++) {
                unsigned code = (unsigned) test_rand_below(1u << b);

                codes[fragment_index(side, i / 8, i % 8)] = (uint8_t) code;
                half_tile_set(expected, b, side, i / 8, i % 8, code);
            }
            half_tile_pack(codes, b, got);
            CU_ASSERT_EQUAL(memcmp(got, expected, half_tile_bytes(b)), 0);
        }
}

static void test_transpose(void)
{
    uint8_t codes[HALF_TILE_CODES], ret[HALF_TILE_CODES];

    random_bytes(codes, sizeof(codes));
    half_tile_transpose(codes, ret);
    for (size_t i = 0; i < HALF_TILE_CODES; i++)
        CU_ASSERT_EQUAL(ret[i / 64 * 64 + i % 8 * 8 + i / 8 % 8], codes[i]);
    half_tile_transpose(ret, ret);
    CU_ASSERT_EQUAL(memcmp(ret, codes, sizeof(codes)), 0);
}

/* The block of a head with half-tiles of different widths, empty ones
 * included, has the layout of DESIGN 4. */
static void check_block(struct head_view h)
{
    size_t n_k = CHUNK_TOKENS * (size_t) h.k->r, n_v = CHUNK_TOKENS * (size_t) h.v->r;
    size_t bytes = ((size_t) h.k->code_bits + h.v->code_bits) * CHUNK_TOKENS / 8;
    uint8_t *codes = calloc(1, n_k + n_v + 1), *back = malloc(n_k + n_v + 1);
    uint8_t *expected = calloc(1, bytes + 1), *got = malloc(bytes + 1), *at = expected;
    uint8_t *side_codes[2] = {codes, codes + n_k};

    assert(codes && back && expected && got);
    got[bytes] = 0x77;
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        const struct codec *c = side == SIDE_K ? h.k : h.v;

        for (size_t half = 0; half < c->n_half; half++) {
            unsigned b = c->bits[half];

            for (unsigned i = 0; b > 0 && i < HALF_TILE_CODES; i++) {
                unsigned code = (unsigned) test_rand_below(1u << b);

                side_codes[side][i / 8 * c->r + 8 * half + i % 8] = (uint8_t) code;
                half_tile_set(at, b, side, i / 8, i % 8, code);
            }
            at += 64 * b;
        }
    }
    CU_ASSERT_EQUAL(at, expected + bytes);
    block_pack(h, codes, codes + n_k, got);
    CU_ASSERT_EQUAL(memcmp(got, expected, bytes), 0);
    CU_ASSERT_EQUAL(got[bytes], 0x77);
    memset(back, 0xee, n_k + n_v + 1);
    block_unpack(h, got, back, back + n_k);
    CU_ASSERT_EQUAL(memcmp(back, codes, n_k + n_v), 0);
    CU_ASSERT_EQUAL(back[n_k + n_v], 0xee);
    free(codes);
    free(back);
    free(expected);
    free(got);
}

static void test_block(void)
{
    for (int bits = -1; bits <= 8; bits++) {
        struct memory_table_options o = {.geometry = memory_table_geometry(1, 4, 4, 80, 80), .bits = bits};
        struct memory_table v;

        memory_table_init(&v, &o);
        for (uint32_t head = 0; head < 4; head++)
            check_block(head_view(&v.table, 0, head));
        memory_table_deinit(&v);
    }
}

const char test_suite[] = "half_tile";
const struct test_case test_cases[] = {
    TEST(test_width_8),   TEST(test_width_4),         TEST(test_width_2),
    TEST(test_width_1),   TEST(test_planes_of_seven), TEST(test_bijection),
    TEST(test_set_get),   TEST(test_unpack),          TEST(test_pack),
    TEST(test_transpose), TEST(test_block),           TEST_END,
};
