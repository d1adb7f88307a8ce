/*
 * CRC32C (Castagnoli) as algebra, for the kernels and for the host that launches them. A state of 32 bits
 * is a polynomial over GF(2), its highest power in the lowest bit.
 *
 *     append a word w (little-endian):   s = (s + w) x^32 mod P
 *     append n zero bytes:               s = s x^8n mod P
 *
 * Both are linear, so pieces of a message can be summed in any order, each multiplied by x^(8 n) for the n
 * bytes behind it.
 */
#pragma once

#include "gpu/cuda/kernels/launch.h"

#define CRC_POLYNOMIAL 0x82f63b78u
#define CRC_ONE 0x80000000u

/* a b mod P */
DEVICE_INLINE uint32_t crc_product(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;

    for (unsigned i = 0; i < 32; i++) {
        sum ^= b & (0u - (a >> (31 - i) & 1));
        b = b >> 1 ^ (CRC_POLYNOMIAL & (0u - (b & 1)));
    }
    return sum;
}

/* s x^32n mod P; @powers: [i] = x^(32 2^i), as far as n has bits. */
DEVICE_INLINE uint32_t crc_shift(uint32_t s, uint64_t n, const uint32_t *powers)
{
    for (unsigned i = 0; n >> i != 0; i++)
        if (n >> i & 1)
            s = crc_product(s, powers[i]);
    return s;
}
