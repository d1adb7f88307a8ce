/*
 * Codes of packed half-tiles to levels in the order of fragments, many at a time (gpu/README.md draws half-tiles).
 *
 * Levels are a table, not a line. Up to four bits they are whole numbers of one step (alloc/table.h), so a level is a byte and
 * 16 bytes are all of them: prmt looks up four codes, which stand in its selector's nibbles, in eight bytes; two of them and a
 * choice by bit 3 take 16. A byte behind 0x64 is the binary16 number 1024 + byte, so level + 1152, which sums in binary32 may
 * take as it is if as much is taken off them for every weight. Wider levels are binary16 numbers in shared
 * memory, looked up one by one: few half-tiles of a table are that wide.
 */
#pragma once

#include "gpu/cuda/kernels/attend_90.h"
#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/hopper.h"

/* Two half-tiles in a block of a head, 16 coordinates. */
struct tile_90 {
    uint32_t offset[2], b[2];
    uint32_t both;              /* 1 .. 4: the width of both; 0: they differ, or are wider or empty */
    bool of_key;
};

/* @tiles: of K or of this warp's columns. */
DEVICE struct tile_90 tile_at(const uint32_t *tiles, uint32_t i)
{
    struct words4 w = words_at(tiles + 4 * i);

    return { { w.word[0], w.word[1] }, { w.word[3] & 15, w.word[3] >> 4 & 15 }, w.word[2], w.word[3] >> 8 != 0 };
}

/* Levels of both sides in shared memory. */
struct levels_90 {
    const uint8_t *narrow;  /* [2][5 (b)][16] level + 128 */
    const uint16_t *wide;   /* [2][PLAN_90_WIDE_LEVELS] of b = 5, then 6, 7, 8 */
};

enum {
    MINUS_1152 = 0xe480,    /* binary16: takes 1024 and 128 off */
    PLUS_1152 = 0x64806480, /* two of them */
    HIGH_BYTES = 0x64646464,
};

DEVICE const uint16_t *wide_levels(struct levels_90 l, unsigned side, unsigned b)
{
    return l.wide + side * PLAN_90_WIDE_LEVELS + (1u << b) - 32;
}

DEVICE struct words4 narrow_table(struct levels_90 l, unsigned side, unsigned b)
{
    return words_at(l.narrow + (side * (PLAN_90_NARROW_BITS + 1) + b) * 16);
}

/* Four codes of @b <= 4 bits, in the lower four nibbles, to levels + 128. */
DEVICE uint32_t narrow_levels(struct words4 table, unsigned b, uint32_t nibbles)
{
    uint32_t low, high;

    if (b < 4) /* no nibble is above 7 */
        return pick_bytes(table.word[0], table.word[1], nibbles);
    low = pick_bytes(table.word[0], table.word[1], nibbles & 0x7777);
    high = pick_bytes(table.word[2], table.word[3], nibbles & 0x7777);
    return pick_bytes(low, high, (nibbles >> 1 & 0x4444) | 0x3210);
}

/* The same of eight codes: of the lower half-word, then of the upper one. */
DEVICE void narrow_levels_of_8(struct words4 table, unsigned b, uint32_t nibbles, uint32_t ret[2])
{
    uint32_t within = nibbles & 0x77777777, which = (nibbles >> 1 & 0x44444444) | 0x32103210;

    UNROLL
    for (unsigned h = 0; h < 2; h++) {
        ret[h] = pick_bytes(table.word[0], table.word[1], (b < 4 ? nibbles : within) >> 16 * h);
        if (b == 4)
            ret[h] = pick_bytes(ret[h], pick_bytes(table.word[2], table.word[3], within >> 16 * h), which >> 16 * h);
    }
}

/* Bytes of levels + 128 that @which names, 4 being a high byte, to a pair of levels, or with @raised of levels + 1152. */
DEVICE uint32_t pair_of_bytes(uint32_t bytes, uint32_t which, bool raised)
{
    uint32_t pair = pick_bytes(bytes, HIGH_BYTES, which);

    return raised ? pair : add_pairs(pair, MINUS_1152 | (uint32_t) MINUS_1152 << 16);
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

/* Levels of fields @j, even, and @j + 1 by a table: pairs of columns 2t, 2t + 1, tokens 8 j + g and 8 j + 8 + g. */
DEVICE void narrow_key(struct words4 table, const uint8_t *at, unsigned b, unsigned lane, unsigned j, uint32_t ret[2])
{
    uint32_t bytes = narrow_levels(table, b, key_nibbles(at, b, lane, j));

    ret[0] = pair_of_bytes(bytes, 0x4240, false);
    ret[1] = pair_of_bytes(bytes, 0x4341, false);
}

/* The same for any width. */
DEVICE void key_half(struct levels_90 l, const uint8_t *at, unsigned b, unsigned lane, unsigned j, uint32_t ret[2])
{
    if (b > PLAN_90_NARROW_BITS) {
        ret[0] = level_pair(wide_levels(l, 0, b), code_pair(at, b, lane, j));
        ret[1] = level_pair(wide_levels(l, 0, b), code_pair(at, b, lane, j + 1));
    } else if (b > 0) {
        narrow_key(narrow_table(l, 0, b), at, b, lane, j, ret);
    } else {
        ret[0] = ret[1] = 0;
    }
}

/* Both half-tiles at a width that the compiler knows, where most of their time would go into finding out. */
template <int B> DEVICE void key_tile_of(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane, unsigned j,
                                         uint32_t ret[4])
{
    struct words4 table = narrow_table(l, 0, B);

    narrow_key(table, codes + t.offset[0], B, lane, j, ret);
    narrow_key(table, codes + t.offset[1], B, lane, j, ret + 2);
}

/* Operand A of fields @j, @j + 1 as rows, 16 coordinates. */
DEVICE void key_tile(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane, unsigned j, uint32_t ret[4])
{
    if (t.both == 4) {
        key_tile_of<4>(l, codes, t, lane, j, ret);
    } else if (t.both == 3) {
        key_tile_of<3>(l, codes, t, lane, j, ret);
    } else if (t.both == 2) {
        key_tile_of<2>(l, codes, t, lane, j, ret);
    } else {
        key_half(l, codes + t.offset[0], t.b[0], lane, j, ret);
        key_half(l, codes + t.offset[1], t.b[1], lane, j, ret + 2);
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

/*
 * All 16 levels of a lane by a table: ret[2 s + h] is the pair of fields 2 s and 2 s + 1, both of half h. @of_key: of K as if it
 * were V. There a lane has tokens as fields and a pair of coordinates as halves, eight lanes the tokens of a field; so half-words,
 * each with all its fields, change places as in a matrix that is transposed. @raised: all by 1152.
 */
DEVICE void narrow_half(struct words4 table, const uint8_t *at, unsigned b, unsigned lane, bool of_key, bool raised, uint32_t ret[8])
{
    uint32_t nibbles[2], bytes[2];

    half_nibbles(at, b, lane, nibbles);
    UNROLL
    for (unsigned q = 0; q < 2; q++) {
        if (of_key)
            nibbles[q] = transpose_8x8(nibbles[q]);
        narrow_levels_of_8(table, b, nibbles[q], bytes);
        UNROLL
        for (unsigned h = 0; h < 2; h++) {
            ret[4 * q + h] = pair_of_bytes(bytes[h], 0x4140, raised);
            ret[4 * q + 2 + h] = pair_of_bytes(bytes[h], 0x4342, raised);
        }
    }
}

/* The same for any width. */
DEVICE void column_half(struct levels_90 l, const uint8_t *at, unsigned b, unsigned lane, bool of_key, uint32_t ret[8])
{
    if (b > PLAN_90_NARROW_BITS) {
        const uint16_t *wide = wide_levels(l, of_key ? 0 : 1, b);

        UNROLL
        for (unsigned s = 0; s < 4; s++) {
            uint32_t first = code_pair(at, b, lane, 2 * s), second = code_pair(at, b, lane, 2 * s + 1);

            first = level_pair(wide, of_key ? transpose_8x8(first) : first);
            second = level_pair(wide, of_key ? transpose_8x8(second) : second);
            ret[2 * s] = pick_bytes(first, second, 0x5410);
            ret[2 * s + 1] = pick_bytes(first, second, 0x7632);
        }
    } else if (b > 0) {
        narrow_half(narrow_table(l, of_key ? 0 : 1, b), at, b, lane, of_key, false, ret);
    } else {
        UNROLL
        for (unsigned i = 0; i < 8; i++)
            ret[i] = 0;
    }
}

template <int B> DEVICE void column_tile_of(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane,
                                            uint32_t ret[2][8])
{
    struct words4 table = narrow_table(l, 1, B);

    narrow_half(table, codes + t.offset[0], B, lane, false, true, ret[0]);
    narrow_half(table, codes + t.offset[1], B, lane, false, true, ret[1]);
}

/* 16 coordinates of all tokens; of K only where V is predicted. Returns whether they are raised by 1152. */
DEVICE bool column_tile(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane, uint32_t ret[2][8])
{
    if (t.both == 4 && !t.of_key) {
        column_tile_of<4>(l, codes, t, lane, ret);
        return true;
    }
    if (t.both == 3 && !t.of_key) {
        column_tile_of<3>(l, codes, t, lane, ret);
        return true;
    }
    if (t.both == 2 && !t.of_key) {
        column_tile_of<2>(l, codes, t, lane, ret);
        return true;
    }
    column_half(l, codes + t.offset[0], t.b[0], lane, t.of_key, ret[0]);
    column_half(l, codes + t.offset[1], t.b[1], lane, t.of_key, ret[1]);
    return false;
}
