/* Levels of packed half-tiles in the order of the fragments of attend_90.cu, looked up as in nibbles.h. The
 * lookup gives a byte, level + 128; with 0x64 as upper byte it is the binary16 number level + 1152.
 * Binary32 sums may use that number directly if 1152 is subtracted from them for every weight. */
#pragma once

#include "gpu/cuda/kernels/attend_90.h"
#include "gpu/cuda/kernels/hopper.h"
#include "gpu/cuda/kernels/nibbles.h"

#define PLUS_1152_TWICE 0x64806480u

/* Two half-tiles in the block of a head, 16 coordinates. */
struct tile_90 {
    uint32_t offset[2], b[2];
    uint32_t both; /* 1 .. 4: the width of both; 0: widths differ, or one is wider than 4 or empty */
    bool of_key;
};

/* @tiles: of K, or of the columns of this warp. */
DEVICE struct tile_90 tile_at(const uint32_t *tiles, uint32_t i)
{
    struct words4 w = words_at(tiles + 4 * i);

    return {{w.word[0], w.word[1]}, {w.word[3] & 15, w.word[3] >> 4 & 15}, w.word[2], w.word[3] >> 8 != 0};
}

/* Levels of both sides in shared memory. */
struct levels_90 {
    const uint8_t *narrow; /* [2][5 (b)][16] level + 128 */
    const uint16_t *wide;  /* [2][WIDE_LEVELS] binary16 */
};

DEVICE const uint16_t *wide_levels(struct levels_90 l, unsigned side)
{
    return l.wide + side * WIDE_LEVELS;
}

DEVICE struct words4 narrow_table(struct levels_90 l, unsigned side, unsigned b)
{
    return words_at(l.narrow + (side * (NARROW_BITS + 1) + b) * 16);
}

/* The bytes that the nibbles of @which name, where 4 names the byte 0x64, as a pair of levels; if @raised,
 * as a pair of levels + 1152. */
DEVICE uint32_t pair_of(uint32_t bytes, uint32_t which, bool raised)
{
    return raised ? pick_bytes(bytes, BEFORE_BYTES, which) : pair_of_bytes(bytes, which);
}

/* ---- keys: two fields of a lane ---- */

/* Codes of @b = 1 .. 4 bits of fields @j (even) and @j + 1 as nibbles: h = 0 of both, then h = 1. */
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

/* Levels of fields @j (even) and @j + 1 from a table: pairs of columns 2t, 2t + 1, tokens 8 j + g and 8 j +
 * 8 + g. */
DEVICE void narrow_key(struct words4 table, const uint8_t *at, unsigned b, unsigned lane, unsigned j,
                       uint32_t ret[2])
{
    uint32_t bytes = narrow_levels(table, b, key_nibbles(at, b, lane, j));

    ret[0] = pair_of_bytes(bytes, 0x4240);
    ret[1] = pair_of_bytes(bytes, 0x4341);
}

/* The same for any width. */
DEVICE void key_half(struct levels_90 l, const uint8_t *at, unsigned b, unsigned lane, unsigned j,
                     uint32_t ret[2])
{
    if (b > NARROW_BITS) {
        ret[0] = wide_pair(wide_levels(l, 0), b, code_pair(at, b, lane, j));
        ret[1] = wide_pair(wide_levels(l, 0), b, code_pair(at, b, lane, j + 1));
    } else if (b > 0) {
        narrow_key(narrow_table(l, 0, b), at, b, lane, j, ret);
    } else {
        ret[0] = ret[1] = 0;
    }
}

/* Looks up both half-tiles at a width that is a constant. Finding the width at run
 * time would take most of the time. */
template <int B>
DEVICE void key_tile_of(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane, unsigned j,
                        uint32_t ret[4])
{
    struct words4 table = narrow_table(l, 0, B);

    narrow_key(table, codes + t.offset[0], B, lane, j, ret);
    narrow_key(table, codes + t.offset[1], B, lane, j, ret + 2);
}

/* Operand A of fields @j, @j + 1 as rows, 16 coordinates. */
DEVICE void key_tile(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane, unsigned j,
                     uint32_t ret[4])
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

/* ---- whole half-tiles of a lane ---- */

/*
 * All 16 levels of a lane from a table: ret[2 s + h] is the pair of fields 2 s and 2 s + 1, both of half h.
 *
 * @of_key: read K as if it were V. In K a lane has tokens as fields and a pair of coordinates as halves, and
 * eight lanes have the tokens of a field. So half-words, each with all its fields, are exchanged as in a
 * transposed matrix. @raised: add 1152 to all levels.
 */
DEVICE void narrow_half(struct words4 table, const uint8_t *at, unsigned b, unsigned lane, bool of_key,
                        bool raised, uint32_t ret[8])
{
    UNROLL
    for (unsigned q = 0; q < 2; q++) {
        uint32_t nibbles = nibbles_of(at, b, lane, q), bytes[2];

        if (of_key)
            nibbles = transpose_8x8(nibbles);
        narrow_levels_of_8(table, b, nibbles, &bytes[0], &bytes[1]);
        UNROLL
        for (unsigned h = 0; h < 2; h++) {
            ret[4 * q + h] = pair_of(bytes[h], 0x4140, raised);
            ret[4 * q + 2 + h] = pair_of(bytes[h], 0x4342, raised);
        }
    }
}

/* The same for any width. */
DEVICE void column_half(struct levels_90 l, const uint8_t *at, unsigned b, unsigned lane, bool of_key,
                        uint32_t ret[8])
{
    if (b > NARROW_BITS) {
        const uint16_t *wide = wide_levels(l, of_key ? 0 : 1);

        UNROLL
        for (unsigned s = 0; s < 4; s++) {
            uint32_t first = code_pair(at, b, lane, 2 * s), second = code_pair(at, b, lane, 2 * s + 1);

            first = wide_pair(wide, b, of_key ? transpose_8x8(first) : first);
            second = wide_pair(wide, b, of_key ? transpose_8x8(second) : second);
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

template <int B>
DEVICE void column_tile_of(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane,
                           uint32_t ret[2][8])
{
    struct words4 table = narrow_table(l, 1, B);

    narrow_half(table, codes + t.offset[0], B, lane, false, true, ret[0]);
    narrow_half(table, codes + t.offset[1], B, lane, false, true, ret[1]);
}

/* 16 coordinates of all tokens; of K only if V is predicted. Returns
 * whether the levels are raised by 1152. */
DEVICE bool column_tile(struct levels_90 l, const uint8_t *codes, struct tile_90 t, unsigned lane,
                        uint32_t ret[2][8])
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
