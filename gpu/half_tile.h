/*
 * Half-tiles to codes and back, word by word. The map is that of page_layout.h; tests/lib/half_tile_code.h
 * reads and writes single codes by it.
 *
 * Fragment order is the order in which the fields of a half-tile come out of its words without a shuffle:
 * codes[64 j + 8 row + col] with j, row, col as j, g and 2t + h of page_layout.h. That is
 *
 *     K: row = n & 7, col = c    so codes[8 n + c]: token-major
 *     V: row = c, col = n & 7    so codes[64 (n >> 3) + 8 c + (n & 7)]: eight tokens of a coordinate together
 */
#pragma once

#include <stdint.h>

#include "gpu/page_layout.h"

#define HALF_TILE_CODES (CHUNK_TOKENS * 8)

static inline size_t half_tile_bytes(unsigned b)
{
    return (size_t) b * CHUNK_TOKENS;
}

/* @half_tile: half_tile_bytes(b), any alignment; b in 1..8. @codes: [HALF_TILE_CODES] in fragment order. */
void half_tile_unpack(const uint8_t *half_tile, unsigned b, uint8_t *codes);
void half_tile_pack(const uint8_t *codes, unsigned b, uint8_t *half_tile);

/* Transposes each of the 8 x 8 blocks of @codes: K's fragment order to V's and back. @ret may be @codes. */
void half_tile_transpose(const uint8_t *codes, uint8_t *ret);

/* The codes of eight strings to states, in the fragment order of @side, and back (alloc/table/trellis.h). */
void half_tile_to_states(unsigned b, unsigned state_bits, enum side side, uint8_t *codes);
void half_tile_to_codes(unsigned b, unsigned state_bits, uint8_t *codes);
