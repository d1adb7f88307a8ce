/*
 * Looks up the levels of codes of packed half-tiles, many at a time (gpu/README.md draws half-tiles).
 * Levels follow no formula, so they need a table. Up to four bits they are whole multiples of one step
 * (alloc/table/table.h), so a level is a byte and a table is 16 bytes. prmt looks up four codes, the nibbles
 * of its selector, in eight bytes; two prmt and a choice by bit 3 take 16 bytes. Products of bytes use the
 * result directly. With 0x64 as upper byte it is the binary16 number 1024 + byte. Wider levels are binary16
 * numbers in shared memory, at most two words to a bank up to seven bits, looked up one by one.
 */
#pragma once

#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/pairs.h"

enum {
    NARROW_BITS = 4,
    WIDE_LEVELS = 512, /* of all widths: the levels of b bits begin at 2^b */
};

#define MINUS_1152_TWICE 0xe480e480u /* binary16: subtracts 1024 and 128 */
#define BEFORE_BYTES 0x64646464u

/* Levels of four codes of @b <= 4 bits, in the lower four nibbles, from the 16 bytes @levels. */
DEVICE uint32_t narrow_levels(struct words4 levels, unsigned b, uint32_t nibbles)
{
    uint32_t low, high;

    if (b < NARROW_BITS) /* no nibble is above 7 */
        return pick_bytes(levels.word[0], levels.word[1], nibbles);
    low = pick_bytes(levels.word[0], levels.word[1], nibbles & 0x7777);
    high = pick_bytes(levels.word[2], levels.word[3], nibbles & 0x7777);
    return pick_bytes(low, high, (nibbles >> 1 & 0x4444) | 0x3210);
}

/* The same for eight codes: of the lower half-word, then of the upper one. */
DEVICE void narrow_levels_of_8(struct words4 levels, unsigned b, uint32_t nibbles, uint32_t *ret_lower,
                               uint32_t *ret_upper)
{
    uint32_t within = b < NARROW_BITS ? nibbles : nibbles & 0x77777777,
             which = (nibbles >> 1 & 0x44444444) | 0x32103210;

    *ret_lower = pick_bytes(levels.word[0], levels.word[1], within);
    *ret_upper = pick_bytes(levels.word[0], levels.word[1], within >> 16);
    if (b < NARROW_BITS)
        return;
    *ret_lower = pick_bytes(*ret_lower, pick_bytes(levels.word[2], levels.word[3], within), which);
    *ret_upper =
        pick_bytes(*ret_upper, pick_bytes(levels.word[2], levels.word[3], within >> 16), which >> 16);
}

/* The bytes of levels + 128 that the nibbles of @which name, where 4 names the byte 0x64, as a pair of
 * levels in binary16. */
DEVICE uint32_t pair_of_bytes(uint32_t bytes, uint32_t which)
{
    return add_pairs(pick_bytes(bytes, BEFORE_BYTES, which), MINUS_1152_TWICE);
}

/* Spreads fields of two bits in the lower byte of both half-words to nibbles. */
DEVICE uint32_t spread_2(uint32_t x)
{
    x &= 0x00ff00ff;
    x = (x | x << 4) & 0x0f0f0f0f;
    return (x | x << 2) & 0x33333333;
}

/* Spreads fields of one bit in the lower nibble of both half-words to nibbles. */
DEVICE uint32_t spread_1(uint32_t x)
{
    x &= 0x000f000f;
    x = (x | x << 6) & 0x03030303;
    return (x | x << 3) & 0x11111111;
}

/* Codes of @b = 1 .. 4 bits as nibbles: fields 4 q .. 4 q + 3 of h = 0 in the lower half-word, of h = 1 in
 * the upper one. */
DEVICE uint32_t nibbles_of(const uint8_t *at, unsigned b, unsigned lane, unsigned q)
{
    const uint32_t *words = (const uint32_t *) at;
    uint32_t x = 0;

    if (b == 4)
        return words[32 * q + lane];
    if (b >= 2) {
        x = spread_2(words[lane] >> 8 * q);
        words += 32;
    }
    if (b & 1)
        x = x << 1 | spread_1(pick_bytes(((const uint16_t *) words)[lane], 0, 0x4140) >> 4 * q);
    return x;
}

/* Levels in binary16 of a pair of codes of @b bits, in half-words. */
DEVICE uint32_t wide_pair(const uint16_t *levels, unsigned b, uint32_t codes)
{
    return level_pair(levels + (1u << b), codes);
}
