/* gpu/half_tile.c and gpu/block.c against the one-code-at-a-time map of gpu/page_layout.c. Bit for bit. */
#include "gpu/half_tile.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/codec.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/view.h"

static void random_bytes(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t) test_rand();
}

/* Where fragment order puts token @n, coordinate @c. */
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
    uint8_t codes[HALF_TILE_CODES], want[512], got[512];

    for (unsigned b = 1; b <= 8; b++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            random_bytes(want, sizeof(want));
            random_bytes(got, sizeof(got));
            for (unsigned i = 0; i < HALF_TILE_CODES; i++) {
                unsigned code = (unsigned) test_rand_below(1u << b);

                codes[fragment_index(side, i / 8, i % 8)] = (uint8_t) code;
                half_tile_set(want, b, side, i / 8, i % 8, code);
            }
            half_tile_pack(codes, b, got);
            CU_ASSERT_EQUAL(memcmp(got, want, half_tile_bytes(b)), 0);
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

/* The block of a head whose half-tiles differ in width, empty ones included, stands as DESIGN 4 says. */
static void check_block(struct head_view h)
{
    size_t n_k = CHUNK_TOKENS * (size_t) h.k->r, n_v = CHUNK_TOKENS * (size_t) h.v->r;
    size_t bytes = ((size_t) h.k->code_bits + h.v->code_bits) * CHUNK_TOKENS / 8;
    uint8_t *codes = calloc(1, n_k + n_v + 1), *back = malloc(n_k + n_v + 1);
    uint8_t *want = calloc(1, bytes + 1), *got = malloc(bytes + 1), *at = want;
    uint8_t *side_codes[2] = {codes, codes + n_k};

    assert(codes && back && want && got);
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
    CU_ASSERT_EQUAL(at, want + bytes);
    block_pack(h, codes, codes + n_k, got);
    CU_ASSERT_EQUAL(memcmp(got, want, bytes), 0);
    CU_ASSERT_EQUAL(got[bytes], 0x77);
    memset(back, 0xee, n_k + n_v + 1);
    block_unpack(h, got, back, back + n_k);
    CU_ASSERT_EQUAL(memcmp(back, codes, n_k + n_v), 0);
    CU_ASSERT_EQUAL(back[n_k + n_v], 0xee);
    free(codes);
    free(back);
    free(want);
    free(got);
}

static void test_block(void)
{
    for (int bits = -1; bits <= 8; bits++) {
        struct view_options o = {.geometry = view_geometry(1, 4, 4, 80, 80), .bits = bits};
        struct view v;

        view_init(&v, &o);
        for (uint32_t head = 0; head < 4; head++)
            check_block(head_view(&v.table, 0, head));
        view_deinit(&v);
    }
}

const char test_suite[] = "half_tile";
const struct test_case test_cases[] = {
    TEST(test_unpack), TEST(test_pack), TEST(test_transpose), TEST(test_block), TEST_END,
};
