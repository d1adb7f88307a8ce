/*
 * Codes of packed half-tiles to levels in the order of fragments, many at a time (gpu/README.md draws half-tiles).
 *
 * Levels are a table, not a line. Up to four bits they are whole numbers of one step (alloc/table.h), so a level is a byte and
 * 16 bytes are all of them: prmt looks up four codes, which stand in its selector's nibbles, in eight bytes; two of them and a
 * choice by bit 3 take 16. A byte behind 0x64 is the binary16 number 1024 + byte. Wider levels are binary16 numbers in shared
 * memory, looked up one by one: few half-tiles of a table are that wide.
 */
#pragma once

#include "gpu/cuda/kernels/attend_90.h"
#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/hopper.h"

/* One side's levels in shared memory. */
struct levels_90 {
    const uint8_t *narrow;  /* [5 (b)][16] level + 128 */
    const uint16_t *wide;   /* [PLAN_90_WIDE_LEVELS] of b = 5, then 6, 7, 8 */
};

enum {
    MINUS_1152 = 0xe480, /* binary16: takes 1024 and 128 off */
    HIGH_BYTES = 0x64646464,
};

DEVICE const uint16_t *wide_levels(struct levels_90 l, unsigned b)
{
    return l.wide + (1u << b) - 32;
}

/* Four codes of @b <= 4 bits, in the lower four nibbles, to levels + 128. */
DEVICE uint32_t narrow_levels(struct words4 table, unsigned b, uint32_t nibbles)
{
    uint32_t low, high, mask;

    if (b < 4) /* no nibble is above 7 */
        return pick_bytes(table.word[0], table.word[1], nibbles);
    low = pick_bytes(table.word[0], table.word[1], nibbles & 0x7777);
    high = pick_bytes(table.word[2], table.word[3], nibbles & 0x7777);
    mask = pick_bytes(0, 0xffffffffu, nibbles >> 1 & 0x4444);
    return (low & ~mask) | (high & mask);
}

/* Bytes of levels + 128 that @which names, 4 being a high byte, to a pair of levels. */
DEVICE uint32_t pair_of_bytes(uint32_t bytes, uint32_t which)
{
    return add_pairs(pick_bytes(bytes, HIGH_BYTES, which), MINUS_1152 | (uint32_t) MINUS_1152 << 16);
}

/* ---- keys: two fields of a lane ---------------------------------------------------------------------------------------- */

/* Codes of @b = 1 .. 4 bits of fields @j, even, and @j + 1 as nibbles: h = 0 of both, then h = 1. */
DEVICE uint32_t key_nibbles(const uint8_t *at, unsigned b, unsigned lane, unsigned j)
{
    const uint32_t *words = (const uint32_t *) at;
    uint32_t r = 0;

    if (b == 4)
        return pick_bytes(words[(j >> 2) * 32 + lane], 0, j & 2 ? 0x4431 : 0x4420);
    if (b >= 2) {
        uint32_t w = words[lane] >> 2 * j;

        r = pick_bytes((w & 0x00030003) | (w << 2 & 0x00300030), 0, 0x4420);
        words += 32;
    }
    if (b & 1) {
        uint32_t w = (uint32_t) ((const uint16_t *) words)[lane] >> j;

        r = r << 1 | (w & 0x0101) | (w << 3 & 0x1010);
    }
    return r;
}

/* Levels of fields @j, even, and @j + 1: pairs of columns 2t, 2t + 1, tokens 8 j + g and 8 j + 8 + g. */
DEVICE void key_levels(struct levels_90 l, const uint8_t *at, unsigned b, unsigned lane, unsigned j, uint32_t *ret_first,
                       uint32_t *ret_second)
{
    if (b > PLAN_90_NARROW_BITS) {
        *ret_first = level_pair(wide_levels(l, b), code_pair(at, b, lane, j));
        *ret_second = level_pair(wide_levels(l, b), code_pair(at, b, lane, j + 1));
    } else if (b > 0) {
        uint32_t bytes = narrow_levels(words_at(l.narrow + 16 * b), b, key_nibbles(at, b, lane, j));

        *ret_first = pair_of_bytes(bytes, 0x4240);
        *ret_second = pair_of_bytes(bytes, 0x4341);
    } else {
        *ret_first = *ret_second = 0;
    }
}

/* ---- whole half-tiles of a lane ------------------------------------------------------------------------------------------ */

/* Two bits each in the lower byte of both half-words to nibbles. */
DEVICE uint32_t spread_2(uint32_t x)
{
    x &= 0x00ff00ff;
    x = (x | x << 4) & 0x0f0f0f0f;
    return (x | x << 2) & 0x33333333;
}

/* One bit each in the lower nibble of both half-words to nibbles. */
DEVICE uint32_t spread_1(uint32_t x)
{
    x &= 0x000f000f;
    x = (x | x << 6) & 0x03030303;
    return (x | x << 3) & 0x11111111;
}

/* Codes of @b = 1 .. 4 bits as nibbles: fields 4 q .. 4 q + 3 of h = 0, then of h = 1, in word q. */
DEVICE void half_nibbles(const uint8_t *at, unsigned b, unsigned lane, uint32_t ret[2])
{
    const uint32_t *words = (const uint32_t *) at;

    ret[0] = ret[1] = 0;
    if (b == 4) {
        ret[0] = words[lane];
        ret[1] = words[32 + lane];
        return;
    }
    if (b >= 2) {
        uint32_t w = words[lane];

        ret[0] = spread_2(w);
        ret[1] = spread_2(w >> 8);
        words += 32;
    }
    if (b & 1) {
        uint32_t w = pick_bytes(((const uint16_t *) words)[lane], 0, 0x4140);

        ret[0] = ret[0] << 1 | spread_1(w);
        ret[1] = ret[1] << 1 | spread_1(w >> 4);
    }
}

/* All 16 levels of a lane: ret[2 s + h] is the pair of fields 2 s and 2 s + 1, both of half h. */
DEVICE void half_levels(struct levels_90 l, const uint8_t *at, unsigned b, unsigned lane, uint32_t ret[8])
{
    if (b > PLAN_90_NARROW_BITS) {
        const uint16_t *wide = wide_levels(l, b);

        UNROLL
        for (unsigned s = 0; s < 4; s++) {
            uint32_t first = level_pair(wide, code_pair(at, b, lane, 2 * s));
            uint32_t second = level_pair(wide, code_pair(at, b, lane, 2 * s + 1));

            ret[2 * s] = pick_bytes(first, second, 0x5410);
            ret[2 * s + 1] = pick_bytes(first, second, 0x7632);
        }
    } else if (b > 0) {
        struct words4 table = words_at(l.narrow + 16 * b);
        uint32_t nibbles[2];

        half_nibbles(at, b, lane, nibbles);
        UNROLL
        for (unsigned q = 0; q < 2; q++)
            UNROLL
            for (unsigned h = 0; h < 2; h++) {
                uint32_t bytes = narrow_levels(table, b, nibbles[q] >> 16 * h);

                ret[4 * q + h] = pair_of_bytes(bytes, 0x4140);
                ret[4 * q + 2 + h] = pair_of_bytes(bytes, 0x4342);
            }
    } else {
        UNROLL
        for (unsigned i = 0; i < 8; i++)
            ret[i] = 0;
    }
}

/*
 * The same levels of K, where a lane has tokens as fields and a pair of coordinates as halves, as a lane of V has them: ret[j] is
 * coordinate g of tokens 8 j + 2 t, 8 j + 2 t + 1.
 */
DEVICE void turn_half(uint32_t levels[8])
{
    UNROLL
    for (unsigned s = 0; s < 4; s++) {
        uint32_t first = levels[2 * s], second = levels[2 * s + 1];

        levels[2 * s] = transpose_8x8(pick_bytes(first, second, 0x5410));
        levels[2 * s + 1] = transpose_8x8(pick_bytes(first, second, 0x7632));
    }
}
