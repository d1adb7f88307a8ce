/*
 * Golden strings of trellises: what stands in pages must mean the same on every instruction set and in every
 * later version. Books and numbers are drawn by splitmix64 from fixed seeds, and the SHA-256 of what the
 * encoder chose, and of what the decoder makes of given bytes, are literals. test_trellis.c proves that the
 * strings are the best ones, test_decode.c that levels are those of the definition: this file pins both.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/trellis.h"
#include "base/splitmix64.h"
#include "gpu/cpu.h"
#include "gpu/half_tile.h"
#include "tests/lib/half_tile_code.h"
#include "tests/lib/random_book.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cpu/decode_variants.h"

enum { STRINGS = 96, N_STATES = 3, HEX_BYTES = 17 };

static const char *const names[N_STATES] = {"64 states", "128 states", "256 states"};

/* Levels -127..127, among them 127, for any number of states. */
static void golden_book(unsigned state_bits, unsigned b, struct levels *ret)
{
    uint64_t counter = 1000 * state_bits + b;

    *ret = (struct levels){.step = 0.015625f, .state_bits = (uint8_t) state_bits, .normal_square = 1};
    for (unsigned s = 0; s < 1u << state_bits; s++)
        ret->value[s] = (float) ((int) (splitmix64_next(&counter) % 255) - 127);
    ret->value[5] = 127;
    assert(levels_valid(ret, b));
}

/* Numbers of a bell, silence, both ends, alternating ends, one number again and again, a slope, a peak. */
static void golden_numbers(int16_t *ret)
{
    uint64_t counter = 7;

    for (int t = 0; t < TRELLIS_TOKENS; t++)
        for (int i = 0; i < STRINGS; i++) {
            int sum = -4 * 64, kinds[8];

            for (int k = 0; k < 8; k++)
                sum += (int) (splitmix64_next(&counter) >> 58);
            kinds[0] = kinds[1] = sum;
            kinds[2] = 0;
            kinds[3] = i % 16 < 8 ? TRELLIS_LIMIT : -TRELLIS_LIMIT;
            kinds[4] = t % 2 ? TRELLIS_LIMIT : -TRELLIS_LIMIT;
            kinds[5] = i - 40;
            kinds[6] = 8 * t - 255;
            kinds[7] = t == i % TRELLIS_TOKENS ? TRELLIS_LIMIT : 3;
            ret[t * STRINGS + i] = (int16_t) kinds[i % 8];
        }
}

static void check_digest(const void *bytes, size_t n, const char *want, const char *what, const char *who)
{
    uint8_t digest[crypto_hash_sha256_BYTES];
    char hex[HEX_BYTES];

    (void) crypto_hash_sha256(digest, bytes, n);
    (void) sodium_bin2hex(hex, sizeof(hex), digest, (HEX_BYTES - 1) / 2);
    if (strcmp(hex, want) != 0) {
        CU_FAIL("another string");
        printf("    %s, %s: %s, golden is %s\n", what, who, hex, want);
    }
}

/* [states][bits - 1]: the first eight bytes of the SHA-256 of the states of all tokens. */
static const char *const golden_encoded[N_STATES][TRELLIS_BITS_MAX] = {
    {"f76e812db6e7369b", "f6ca71dfb3735e44", "ca3036e673c23a06", "d4f266a076950704"},
    {"c73fa0e892611f14", "167fecdbe25ec4ee", "e2f6f13286528d7f", "e327ca31c4e8f889"},
    {"e35c2c70d2a51e0b", "8b47dd2e6f6bc976", "682042990880196c", "0d57e7f8d0319047"},
};

static void test_encoder(void)
{
    static int16_t x[TRELLIS_TOKENS * STRINGS];
    static uint8_t states[TRELLIS_TOKENS * STRINGS];
    static _Alignas(64) uint8_t scratch[TRELLIS_SCRATCH];

    golden_numbers(x);
    for (unsigned i = 0; i < N_STATES * TRELLIS_BITS_MAX; i++) {
        unsigned b = i % TRELLIS_BITS_MAX + 1, n = i / TRELLIS_BITS_MAX;
        const char *want = golden_encoded[n][b - 1];
        struct levels l;

        golden_book(TRELLIS_STATE_BITS_MIN + n, b, &l);
        trellis_encode_ref(&l, b, x, STRINGS, STRINGS, states, scratch);
        check_digest(states, sizeof(states), want, names[n], "reference");
#if defined(__x86_64__)
        if (cpu_capabilities() & CPU_AVX2) {
            trellis_encode_avx2(&l, b, x, STRINGS, STRINGS, states, scratch);
            check_digest(states, sizeof(states), want, names[n], "AVX2");
        }
        if (cpu_capabilities() & CPU_AVX512) {
            trellis_encode_avx512(&l, b, x, STRINGS, STRINGS, states, scratch);
            check_digest(states, sizeof(states), want, names[n], "AVX-512");
        }
#endif
    }
}

/* ---- decoding ---- */

enum { COLS = 8 };

/* One half-tile; its levels plus 128, [token][col]. */
struct half {
    uint8_t bytes[64 * TABLE_BITS_MAX], bits[1];
    struct level_table levels[TABLE_BITS_MAX + 1];
    uint8_t level[CHUNK_TOKENS * COLS];
};

/* By the loop of an instruction set. */
static void decode_by(const struct decode_ops *ops, struct half *h)
{
    static _Alignas(64) uint8_t narrow[COLS * CHUNK_TOKENS];
    struct coded coded = {.at = h->bytes, .bits = h->bits, .levels = h->levels, .n_narrow = 1};
    struct key_codes codes = {.narrow = narrow};

    ops->unpack_keys(&coded, &codes);
    for (unsigned token = 0; token < CHUNK_TOKENS; token++)
        for (unsigned col = 0; col < COLS; col++)
            h->level[token * COLS + col] = narrow[(col / 4 * CHUNK_TOKENS + token) * 4 + col % 4];
}

/* By the definition. */
static void decode_by_definition(const struct levels *l, unsigned b, struct half *h)
{
    for (unsigned token = 0; token < CHUNK_TOKENS; token++)
        for (unsigned col = 0; col < COLS; col++)
            h->level[token * COLS + col] =
                (uint8_t) (128 + (int) l->value[random_book_index(l, h->bytes, b, SIDE_K, token, col)]);
}

static const char *const golden_decoded[N_STATES][TRELLIS_BITS_MAX] = {
    {"c54ccad0639d0dcd", "4a68dedb8487b7e2", "53447e8a2ff6f660", "b7c311bff1e27dc7"},
    {"0104981b010c5ecb", "81959d5bbfb8629f", "ed2e18ab08019c5b", "6349d78e6c8384e3"},
    {"d5c144cbf9f1e86e", "ca6acf9e9d31a30a", "daec6b5134cc518b", "b1d9de4e4f0b04c5"},
};

static void test_decoder(void)
{
    static const char *const loops[N_VARIANTS] = {"AVX2", "AVX-VNNI", "AVX-512", "AVX-512 VNNI", "VBMI"};

    for (unsigned i = 0; i < N_STATES * TRELLIS_BITS_MAX; i++) {
        unsigned b = i % TRELLIS_BITS_MAX + 1, n = i / TRELLIS_BITS_MAX;
        uint64_t counter = 77;
        struct half h = {.bits = {(uint8_t) b}};
        struct levels l;

        golden_book(TRELLIS_STATE_BITS_MIN + n, b, &l);
        page_level_table_init(&h.levels[b], &l, b);
        for (size_t k = 0; k < 64 * b; k++)
            h.bytes[k] = (uint8_t) (splitmix64_next(&counter) >> 56);
        decode_by_definition(&l, b, &h);
        check_digest(h.level, sizeof(h.level), golden_decoded[n][b - 1], names[n], "definition");
        for (size_t k = 0; k < N_VARIANTS; k++)
            if (variant(k)) {
                memset(h.level, 0, sizeof(h.level));
                decode_by(variant(k), &h);
                check_digest(h.level, sizeof(h.level), golden_decoded[n][b - 1], names[n], loops[k]);
            }
    }
}

/*
 * Strings of one code by hand. A code's bits enter a state on top, and fall by b places with each token of
 * the string: of code 1 of one bit at place 0 the states of 64 are 32, 16, 8, 4, 2, 1, 0 ..; the string is a
 * circle, so at place 62 they are 32 and 16 before the end, and 8, 4, 2, 1 at the beginning.
 */
static void check_by_hand(unsigned state_bits, unsigned b, unsigned code, unsigned place,
                          const unsigned *want, unsigned n_want)
{
    for (size_t k = 0; k < N_VARIANTS; k++) {
        struct half h = {.bits = {(uint8_t) b}};
        struct levels l = {.step = 1, .state_bits = (uint8_t) state_bits};

        if (!variant(k))
            continue;

        for (int s = 0; s < 1 << state_bits; s++) /* the state itself, halved where 256 do not fit */
            l.value[s] = (float) (state_bits == 8 ? s / 2 : s);
        page_level_table_init(&h.levels[b], &l, b);
        half_tile_set(h.bytes, b, SIDE_K, trellis_token(place), 3, code);
        decode_by(variant(k), &h);
        for (unsigned at = 0; at < TRELLIS_TOKENS; at++) {
            unsigned i = (at + TRELLIS_TOKENS - place) % TRELLIS_TOKENS, state = i < n_want ? want[i] : 0;
            const uint8_t *row = h.level + (size_t) trellis_token(at) * COLS;

            CU_ASSERT_EQUAL(row[3], 128 + (state_bits == 8 ? state / 2 : state));
            CU_ASSERT_EQUAL(row[2], 128); /* the neighbour's string has no code but 0 */
        }
    }
}

static void test_by_hand(void)
{
    check_by_hand(6, 1, 1, 0, (const unsigned[]){32, 16, 8, 4, 2, 1}, 6);
    check_by_hand(6, 1, 1, 62, (const unsigned[]){32, 16, 8, 4, 2, 1}, 6);
    check_by_hand(6, 2, 2, 63, (const unsigned[]){32, 8, 2}, 3);
    check_by_hand(7, 3, 5, 61, (const unsigned[]){80, 10, 1}, 3);
    check_by_hand(8, 4, 11, 9, (const unsigned[]){176, 11}, 2);
    check_by_hand(8, 1, 1, 60, (const unsigned[]){128, 64, 32, 16, 8, 4, 2, 1}, 8);
}

const struct test_case test_cases[] = {
    TEST(test_encoder),
    TEST(test_decoder),
    TEST(test_by_hand),
    TEST_END,
};
const char test_suite[] = "golden_strings";
