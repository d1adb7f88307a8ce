/*
 * Trellis-coded levels: the quantiser of widths up to four bits in tables of format 3.
 *
 * The codes of one coordinate in a chunk are one circular string of 64 b bits. A level belongs to a state,
 * the last L bits of the string up to and including the code of a token:
 *
 *     state = previous state >> b | code << (L - b)          level = book[state]
 *
 * so a token has 2^b codes but the string passes through 2^L levels, and the encoder chooses all codes of
 * a string together (Viterbi's algorithm). The string visits tokens 0, 8, 16 .. 56, then 1, 9, .. 57 and so
 * on: the token before one is in the next lower field of the same word of a half-tile, which gpu/README.md
 * draws, so kernels form states with shifts. The paper's allocation does not change: a trellis of
 * b bits takes the place of 2^b scalar levels (after Marcellin and Fischer, "Trellis coded quantization of
 * memoryless and Gauss-Markov sources", 1990; the state by shifts as in bitshift trellises).
 *
 * The encoder works in whole numbers, so strings have the same bits on every machine.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table_types.h"

enum {
    TRELLIS_TOKENS = 64, /* of a string: those of a chunk */
    TRELLIS_STATE_BITS_MIN = 6,
    TRELLIS_STATE_BITS_MAX = 8,
    TRELLIS_BITS_MAX = 4,    /* widest codes that have a trellis */
    TRELLIS_LANES = 16,      /* strings are encoded in multiples of this */
    TRELLIS_LIMIT = 255,     /* coordinates are clipped to this many steps */
    TRELLIS_SATURATED = 159, /* beyond it a coordinate counts as saturated: 5/4 of the largest level */
};

/* The token that is visited at @place of a string, 0..63; and the place of @token: each is the other's
 * inverse. */
static inline unsigned trellis_token(unsigned place)
{
    return (place & 7) << 3 | place >> 3;
}

/* A coordinate in steps of @l: rounded to nearest, even at a tie, and clipped. @z is finite. */
static inline int16_t trellis_steps(float z, float inverse_step)
{
    float x = z * inverse_step;
    union {
        float x;
        uint32_t bits;
    } shifted;

    x = x > TRELLIS_LIMIT ? TRELLIS_LIMIT : x;
    x = x < -TRELLIS_LIMIT ? -TRELLIS_LIMIT : x;
    shifted.x = x + 0x1.8p23f; /* the fraction is rounded away: the whole number is in the lowest bits */
    return (int16_t) (shifted.bits & 0xffff);
}

/**
 * trellis_encode_fn - encode strings
 * @l:       levels of width @b with a trellis
 * @x:       [64 tokens][stride] coordinates in steps, within TRELLIS_LIMIT
 * @n:       number of strings, a multiple of TRELLIS_LANES; at most stride
 * @states:  [64 tokens][stride] out: the state of each token; its code is its highest b bits
 * @scratch: TRELLIS_SCRATCH bytes, aligned to 64
 *
 * The squared errors, rounded as trellis_loops.h says, are the least of all strings that pass through the
 * state that a first search, of tokens before and after the seam, finds there.
 */
typedef void trellis_encode_fn(const struct levels *l, unsigned b, const int16_t *x, size_t n, size_t stride,
                               uint8_t *states, void *scratch);

enum {
    /* costs of 2^8 states and 2^7 groups, 16 bits; predecessors of 64 tokens, a byte each: for 32 strings */
    TRELLIS_SCRATCH = 32 * (2 * (256 + 128) + TRELLIS_TOKENS * 128),
};

trellis_encode_fn trellis_encode_ref, trellis_encode_avx2, trellis_encode_avx512;

/* The fastest variant that this machine runs. */
trellis_encode_fn *trellis_encode_best(void);
