/*
 * The common part of the files of attend_80.cu: sizes that are constants of a kernel, the shared memory of
 * a block, the division of rows and tokens among fragments.
 *
 * A block attends to two pages at a time. Warp w has the tokens 16 w .. 16 w + 15 of both, so that angles
 * and dec of K are read once for two pages. If there are at most 4 rows, the 8 columns of a fragment of
 * scores are 4 rows of one page and 4 rows of the other. Otherwise they are 8 rows, and there is one
 * fragment per page and 8 rows. One such fragment is a *set*.
 */
#pragma once

#include "gpu/cuda/kernels/attend_80.h"
#include "gpu/cuda/kernels/nibbles.h"
#include "gpu/cuda/kernels/queries.h"

template <int D, int K, int V, int R> struct size_80 {
    enum {
        DIM = D,
        STEPS = D / 32,               /* of 16 planes */
        KEY_STEPS = K / 16,           /* of 16 coordinates */
        VALUE_TILES = V / 16 / WARPS, /* of 16 columns, per warp */
        N_ROWS = R,
        BOTH = R == 4, /* pages in one set */
        ROW_TILES = R == 16 ? 2 : 1,
        SETS = BOTH ? 1 : 2 * ROW_TILES,
        WEIGHT_TILES = BOTH ? 1 : 2 * ROW_TILES, /* of 8 columns: upper bytes of weights, then lower ones */
        PAIRS = D / 4,                           /* of planes */
        /* pairs of planes that one thread rotates */
        ITEMS = (R * PAIRS + LAUNCH_THREADS - 1) / LAUNCH_THREADS,
    };
};

/* A tile of 16 columns of values: two half-tiles of codes. */
struct value_tile {
    uint32_t offset[2]; /* in the payload of a page, or in the head's own block */
    uint32_t bits[2];
    bool is_there, is_key, is_elsewhere; /* is_key: codes of K; is_elsewhere: in the block of another head */
};

enum { TILE_THERE = 1, TILE_KEY = 2, TILE_ELSEWHERE = 4 };

struct shared_80 {
    unsigned char *base;
    struct attend_80_shape at;
};

DEVICE struct words4 narrow_table(struct shared_80 s, unsigned kind, unsigned b)
{
    return words_at(s.base + s.at.narrow + 16 * (5 * kind + b));
}

DEVICE const uint16_t *wide_table(struct shared_80 s, unsigned side)
{
    return (const uint16_t *) (s.base + s.at.wide) + side * ATTEND_80_WIDE_LEVELS;
}

/* Address of one of the three operands B of queries: four words per lane and step. */
template <class S>
DEVICE uint32_t *query_words(struct shared_80 s, unsigned operand, unsigned set, unsigned step, unsigned lane)
{
    return (uint32_t *) (s.base + s.at.queries) +
           (((operand * S::SETS + set) * S::STEPS + step) * 32 + lane) * 4;
}

/* Address of the four words of weights of lane @tt, column @n: [q][h], bytes are tokens 8 (4 q + i) + 2 tt
 * + h. Swizzled by bank. */
template <class S>
DEVICE uint32_t *weight_words(struct shared_80 s, unsigned page, unsigned tile, unsigned n, unsigned tt)
{
    unsigned slot = (4 * n + tt) ^ (n >> 1 & 1) << 2;

    return (uint32_t *) (s.base + s.at.weights) + ((page * S::WEIGHT_TILES + tile) * 32 + slot) * 4;
}

/* The row of a tile of 8, and the page, of column @i of set @set of this lane. */
template <class S> DEVICE unsigned row_of(unsigned lane, unsigned set, unsigned i)
{
    return S::BOTH ? 2 * (lane & 1) + i : 8 * (set % S::ROW_TILES) + 2 * (lane & 3) + i;
}

template <class S> DEVICE unsigned page_of(unsigned lane, unsigned set)
{
    return S::BOTH ? lane >> 1 & 1 : set / S::ROW_TILES;
}
