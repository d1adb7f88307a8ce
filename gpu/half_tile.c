/*
 * Half-tiles, in whole words; see half_tile.h.
 *
 * In half-words the map of page_layout.h no longer depends on h: code i of fragment order, i = 2 lane + h,
 * owns half-word i of the 64 of a plane, and field j of that half-word. So field j of a plane is one loop
 * over 64 half-words with the same shift and mask. Half-words have 16 bits; in the plane of width 1 they
 * have 8, and its eight fields fill them.
 */
#include "gpu/half_tile.h"

#include <assert.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "words of a half-tile are used as they lie in memory");

/* Appends the bits of the plane below those already in @codes. @p in {2, 4,
 * 8}: a constant where this is inlined. */

enum { ROW = 64, FIELDS = HALF_TILE_CODES / ROW };

/* @drop: number of bits of each code below those of this plane. */
static inline const uint8_t *half_tile_plane_unpack(const uint8_t *plane, unsigned p, uint8_t *codes)
{
    unsigned per_word = 16 / p;
    uint16_t words[ROW];

    for (unsigned j = 0; j < FIELDS; j++) {
        uint8_t *row = codes + ROW * j;

        if (j % per_word == 0) {
            memcpy(words, plane, sizeof(words));
            plane += sizeof(words);
        }

        for (unsigned i = 0; i < ROW; i++)
            row[i] = (uint8_t) (row[i] << p | (words[i] >> p * (j % per_word) & ((1u << p) - 1)));
    }

    return plane;
}

static inline void half_tile_plane1_unpack(const uint8_t *plane, uint8_t *codes)
{
    for (unsigned j = 0; j < FIELDS; j++)
        for (unsigned i = 0; i < ROW; i++)
            codes[ROW * j + i] = (uint8_t) (codes[ROW * j + i] << 1 | (plane[i] >> j & 1));
}

/* @drop: number of bits of each code below those of this plane. */
static inline uint8_t *half_tile_plane_pack(const uint8_t *codes, unsigned p, unsigned drop, uint8_t *plane)
{
    unsigned per_word = 16 / p;
    uint16_t words[ROW] = {0};

    for (unsigned j = 0; j < FIELDS; j++) {
        for (unsigned i = 0; i < ROW; i++)
            words[i] =
                (uint16_t) (words[i] | (codes[ROW * j + i] >> drop & ((1u << p) - 1)) << p * (j % per_word));
        if ((j + 1) % per_word == 0) {
            memcpy(plane, words, sizeof(words));
            memset(words, 0, sizeof(words));
            plane += sizeof(words);
        }
    }

    return plane;
}

static inline void half_tile_plane1_pack(const uint8_t *codes, uint8_t *plane)
{
    uint8_t words[ROW] = {0};

    for (unsigned j = 0; j < FIELDS; j++)
        for (unsigned i = 0; i < ROW; i++)
            words[i] = (uint8_t) (words[i] | (codes[ROW * j + i] & 1) << j);
    memcpy(plane, words, sizeof(words));
}

void half_tile_unpack(const uint8_t *half_tile, unsigned b, uint8_t *codes)
{
    const uint8_t *plane = half_tile;

    assert(b >= 1 && b <= TABLE_BITS_MAX);
    memset(codes, 0, HALF_TILE_CODES);
    if (b & 8)
        plane = half_tile_plane_unpack(plane, 8, codes);
    if (b & 4)
        plane = half_tile_plane_unpack(plane, 4, codes);
    if (b & 2)
        plane = half_tile_plane_unpack(plane, 2, codes);
    if (b & 1)
        half_tile_plane1_unpack(plane, codes);
}

void half_tile_pack(const uint8_t *codes, unsigned b, uint8_t *half_tile)
{
    uint8_t *plane = half_tile;

    assert(b >= 1 && b <= TABLE_BITS_MAX);
    if (b & 8)
        plane = half_tile_plane_pack(codes, 8, b & 7, plane);
    if (b & 4)
        plane = half_tile_plane_pack(codes, 4, b & 3, plane);
    if (b & 2)
        plane = half_tile_plane_pack(codes, 2, b & 1, plane);
    if (b & 1)
        half_tile_plane1_pack(codes, plane);
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

static inline bytes16 half_tile_interleave_low(bytes16 a, bytes16 b)
{
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline bytes16 half_tile_interleave_high(bytes16 a, bytes16 b)
{
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Interleaving the first 32 of 64 bytes with the last 32 moves byte i to the place whose index has the six
 * bits of i rotated by one. Three times rotates by three, which swaps row and column of an 8 x 8 block. */
void half_tile_transpose(const uint8_t *codes, uint8_t *ret)
{
    for (unsigned j = 0; j < FIELDS; j++) {
        bytes16 x[4], y[4];

        memcpy(x, codes + ROW * j, sizeof(x));
        for (unsigned round = 0; round < 3; round++) {
            y[0] = half_tile_interleave_low(x[0], x[2]);
            y[1] = half_tile_interleave_high(x[0], x[2]);
            y[2] = half_tile_interleave_low(x[1], x[3]);
            y[3] = half_tile_interleave_high(x[1], x[3]);
            memcpy(x, y, sizeof(x));
        }

        memcpy(ret + ROW * j, x, sizeof(x));
    }
}

/* ---- trellises ---- */

/*
 * A state is the codes of the last tokens of its string, the newest on top: the code k places before is
 * shifted by state_bits - (k + 1) b, down where that is negative. Place p is token 8 (p % 8) + p / 8
 * (trellis_token()), so the predecessor of a token stands 8 words before it, and those of the first 8 tokens
 * are the last 8, each for the next token, since the string is circular. A word has 8 codes, of a token of K
 * or a coordinate of V (byte i: token 8 j + i); none reaches into the next byte.
 */
void half_tile_to_states(unsigned b, unsigned state_bits, enum side side, uint8_t *codes)
{
    uint64_t words[2 * CHUNK_TOKENS], states[CHUNK_TOKENS] = {0};
    uint64_t *word = words + CHUNK_TOKENS;

    memcpy(word, codes, HALF_TILE_CODES);
    for (unsigned j = 0; j < CHUNK_TOKENS; j++) /* words before the first: of the tokens before */
        words[j] = side == SIDE_V ? word[j] << 8 | word[j] >> 56 : word[(j & ~7u) | ((j + 7) & 7)];
    for (unsigned k = 0; k * b < state_bits; k++) {
        const uint64_t *from = word - (size_t) 8 * k;
        unsigned up = state_bits > (k + 1) * b ? state_bits - (k + 1) * b : 0,
                 down = (k + 1) * b + up - state_bits;
        uint64_t kept = 0x0101010101010101u * (0xffu >> down);

        for (unsigned j = 0; j < CHUNK_TOKENS; j++)
            states[j] |= (from[j] << up >> down) & kept;
    }
    memcpy(codes, states, HALF_TILE_CODES);
}

void half_tile_to_codes(unsigned b, unsigned state_bits, uint8_t *codes)
{
    for (unsigned i = 0; i < HALF_TILE_CODES; i++)
        codes[i] = (uint8_t) (codes[i] >> (state_bits - b));
}
