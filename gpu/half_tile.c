/*
 * Half-tiles in whole words. A 32-bit word carries the same field for the two codes of a pair, 16 bits apart; a
 * 16-bit word of the plane of width 1 carries them 8 bits apart. Either way the pair becomes two adjacent bytes.
 */
#include "gpu/half_tile.h"

#include <assert.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of a half-tile are used as they lie in memory");

enum { LANES = 32, FIELDS = 8 };

/* The two fields of width @p at @shift of @word, as two adjacent bytes. */
static inline uint16_t pair_get(uint32_t word, unsigned p, unsigned shift)
{
    uint32_t v = word >> shift & ((1u << p) - 1) * 0x00010001u;

    return (uint16_t) (v | v >> 8);
}

static inline uint32_t pair_put(uint16_t pair, unsigned p, unsigned shift, unsigned drop)
{
    uint32_t v = ((uint32_t) pair | (uint32_t) pair << 8) & 0x00ff00ffu;

    return (v >> drop & ((1u << p) - 1) * 0x00010001u) << shift;
}

/* Appends the plane's bits below those already in @pairs [8][32]. @p in {2, 4, 8}. */
static inline void plane_unpack(const uint8_t *plane, unsigned p, uint16_t pairs[FIELDS][LANES])
{
    unsigned per_word = 16 / p;
    uint32_t words[LANES];

    for (unsigned j = 0; j < FIELDS; j++) {
        if (j % per_word == 0)
            memcpy(words, plane + (j / per_word) * sizeof(words), sizeof(words));
        for (unsigned lane = 0; lane < LANES; lane++)
            pairs[j][lane] = (uint16_t) (pairs[j][lane] << p | pair_get(words[lane], p, p * (j % per_word)));
    }
}

static inline void plane1_unpack(const uint8_t *plane, uint16_t pairs[FIELDS][LANES])
{
    uint16_t words[LANES];

    memcpy(words, plane, sizeof(words));
    for (unsigned j = 0; j < FIELDS; j++)
        for (unsigned lane = 0; lane < LANES; lane++)
            pairs[j][lane] = (uint16_t) (pairs[j][lane] << 1 | (words[lane] >> j & 0x0101));
}

/* @drop: how many bits of each code stand below this plane's. */
static inline void plane_pack(uint16_t pairs[FIELDS][LANES], unsigned p, unsigned drop, uint8_t *plane)
{
    unsigned per_word = 16 / p;
    uint32_t words[LANES] = { 0 };

    for (unsigned j = 0; j < FIELDS; j++) {
        for (unsigned lane = 0; lane < LANES; lane++)
            words[lane] |= pair_put(pairs[j][lane], p, p * (j % per_word), drop);
        if ((j + 1) % per_word == 0) {
            memcpy(plane + (j / per_word) * sizeof(words), words, sizeof(words));
            memset(words, 0, sizeof(words));
        }
    }
}

static inline void plane1_pack(uint16_t pairs[FIELDS][LANES], uint8_t *plane)
{
    uint16_t words[LANES] = { 0 };

    for (unsigned j = 0; j < FIELDS; j++)
        for (unsigned lane = 0; lane < LANES; lane++)
            words[lane] = (uint16_t) (words[lane] | (pairs[j][lane] & 0x0101) << j);
    memcpy(plane, words, sizeof(words));
}

/* The calls below repeat the width as a constant, so that each becomes a loop with constant shifts. */
void half_tile_unpack(const uint8_t *half_tile, unsigned b, uint8_t *codes)
{
    uint16_t pairs[FIELDS][LANES] = { 0 };
    const uint8_t *plane = half_tile;

    assert(b >= 1 && b <= TABLE_BITS_MAX);
    if (b & 8) {
        plane_unpack(plane, 8, pairs);
        plane += 8 * CHUNK_TOKENS;
    }
    if (b & 4) {
        plane_unpack(plane, 4, pairs);
        plane += 4 * CHUNK_TOKENS;
    }
    if (b & 2) {
        plane_unpack(plane, 2, pairs);
        plane += 2 * CHUNK_TOKENS;
    }
    if (b & 1)
        plane1_unpack(plane, pairs);
    memcpy(codes, pairs, HALF_TILE_CODES);
}

void half_tile_pack(const uint8_t *codes, unsigned b, uint8_t *half_tile)
{
    uint16_t pairs[FIELDS][LANES];
    uint8_t *plane = half_tile;

    assert(b >= 1 && b <= TABLE_BITS_MAX);
    memcpy(pairs, codes, HALF_TILE_CODES);
    if (b & 8) {
        plane_pack(pairs, 8, b & 7, plane);
        plane += 8 * CHUNK_TOKENS;
    }
    if (b & 4) {
        plane_pack(pairs, 4, b & 3, plane);
        plane += 4 * CHUNK_TOKENS;
    }
    if (b & 2) {
        plane_pack(pairs, 2, b & 1, plane);
        plane += 2 * CHUNK_TOKENS;
    }
    if (b & 1)
        plane1_pack(pairs, plane);
}

/* 8 x 8 bytes in eight 64-bit rows: swap the off-diagonal 1 x 1, then 2 x 2, then 4 x 4 blocks. */
static void transpose_block(uint64_t row[8])
{
    static const uint64_t low[3] = { 0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff };

    for (unsigned s = 0; s < 3; s++) {
        unsigned step = 1u << s, shift = 8u << s;

        for (unsigned i = 0; i < 8; i++) {
            uint64_t swap;

            if (i & step)
                continue;
            swap = (row[i] >> shift ^ row[i + step]) & low[s];
            row[i] ^= swap << shift;
            row[i + step] ^= swap;
        }
    }
}

void half_tile_transpose(const uint8_t *codes, uint8_t *ret)
{
    for (unsigned j = 0; j < FIELDS; j++) {
        uint64_t row[8];

        memcpy(row, codes + 64 * j, sizeof(row));
        transpose_block(row);
        memcpy(ret + 64 * j, row, sizeof(row));
    }
}
