/*
 * Single codes of a half-tile, by the map of gpu/page_layout.h: the reference for gpu/half_tile.c and for the
 * kernels, which read and write whole words.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"
#include "gpu/page_layout.h"

struct half_tile_place {
    size_t byte;    /* of the code's field, inside its plane */
    unsigned shift; /* inside that byte: no field crosses one */
};

/* page_layout.h numbers the bits of little-endian words; bit s of a word is bit s % 8 of its byte
 * s / 8. So the field of half 1 lies 16 bits (planes of u32 words) or 8 bits (the u16 words of
 * the plane of width 1) above half 0. */
static inline struct half_tile_place half_tile_place(unsigned p, enum side side, unsigned token,
                                                     unsigned coord)
{
    unsigned j = token >> 3, in = token & 7;
    unsigned g = side == SIDE_K ? in : coord;
    unsigned pair = side == SIDE_K ? coord : in;
    unsigned lane = 4 * g + (pair >> 1), h = pair & 1;
    unsigned bit;

    switch (p) {
    case 8:
        bit = 8 * (j & 1) + 16 * h;
        return (struct half_tile_place){4 * ((j >> 1) * 32 + lane) + bit / 8, bit % 8};
    case 4:
        bit = 4 * (j & 3) + 16 * h;
        return (struct half_tile_place){4 * ((j >> 2) * 32 + lane) + bit / 8, bit % 8};
    case 2:
        bit = 2 * j + 16 * h;
        return (struct half_tile_place){4 * lane + bit / 8, bit % 8};
    default:
        bit = j + 8 * h;
        return (struct half_tile_place){2 * lane + bit / 8, bit % 8};
    }
}

static inline unsigned half_tile_get(const uint8_t *half_tile, unsigned b, enum side side, unsigned token,
                                     unsigned coord)
{
    const uint8_t *plane = half_tile;
    unsigned code = 0;

    assert(b <= TABLE_BITS_MAX && token < CHUNK_TOKENS && coord < 8);
    for (unsigned p = 8; p > 0; p /= 2) {
        struct half_tile_place at;

        if (!(b & p))
            continue;

        at = half_tile_place(p, side, token, coord);
        code = code << p | (plane[at.byte] >> at.shift & ((1u << p) - 1));
        plane += (size_t) p * CHUNK_TOKENS;
    }

    return code;
}

static inline void half_tile_set(uint8_t *half_tile, unsigned b, enum side side, unsigned token,
                                 unsigned coord, unsigned code)
{
    uint8_t *plane = half_tile;
    unsigned left = b; /* bits of the code not yet written: the top ones go first */

    assert(b <= TABLE_BITS_MAX && token < CHUNK_TOKENS && coord < 8 && code < 1u << b);
    for (unsigned p = 8; p > 0; p /= 2) {
        unsigned mask = (1u << p) - 1;
        struct half_tile_place at;

        if (!(b & p))
            continue;

        left -= p;
        at = half_tile_place(p, side, token, coord);
        plane[at.byte] =
            (uint8_t) ((plane[at.byte] & ~(mask << at.shift)) | (code >> left & mask) << at.shift);
        plane += (size_t) p * CHUNK_TOKENS;
    }
}
