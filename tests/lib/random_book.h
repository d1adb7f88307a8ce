/* Random levels of a trellis, and its definition worked out token by token, apart from the code that is
 * tested. */
#pragma once

#include "alloc/table/levels.h"
#include "gpu/half_tile.h"
#include "tests/lib/half_tile_code.h"
#include "tests/lib/test.h"

/* Levels of N(0, variance of about 1); the largest at 127 steps. */
static inline void random_book(unsigned state_bits, struct levels *ret)
{
    double book[1 << TABLE_BITS_MAX];

    for (unsigned s = 0; s < 1u << state_bits; s++)
        book[s] = test_rand_normal();
    assert(levels_from_book(book, state_bits, 0.8, 0.8, ret) == 0);
}

/* The index of the level of a token of a half-tile: its code, or the state that the codes of the string up
 * to it make. */
static inline unsigned random_book_index(const struct levels *l, const uint8_t *half_tile, unsigned b,
                                         enum side side, unsigned token, unsigned coord)
{
    unsigned place = token % 8 * 8 + token / 8, state = 0;

    if (l->state_bits == 0)
        return half_tile_get(half_tile, b, side, token, coord);
    for (unsigned back = 9; back-- > 0;) {
        unsigned at = (place + 64 - back) % 64;

        state = state >> b | half_tile_get(half_tile, b, side, at % 8 * 8 + at / 8, coord)
                                 << (l->state_bits - b);
    }
    return state;
}
