/* Codes and levels of packed half-tiles, in the order of fragments and one by one
 * (gpu/README.md, gpu/page_layout.h). */
#pragma once

#include "gpu/cuda/kernels/device.h"
#include "gpu/cuda/kernels/launch.h"

/* Codes of one half-tile that belong to @lane in field @j: column 2t in the low
 * half-word, 2t + 1 in the high half-word. */
DEVICE uint32_t code_pair(const uint8_t *at, unsigned b, unsigned lane, unsigned j)
{
    const uint32_t *words = (const uint32_t *) at;
    uint32_t c = 0;

    if (b & 8)
        return words[(j >> 1) * 32 + lane] >> 8 * (j & 1) & 0x00ff00ffu;
    if (b & 4) {
        c = words[(j >> 2) * 32 + lane] >> 4 * (j & 3) & 0x000f000fu;
        words += 64;
    }
    if (b & 2) {
        c = c << 2 | (words[lane] >> 2 * j & 0x00030003u);
        words += 32;
    }
    if (b & 1) {
        uint32_t bits = ((const uint16_t *) words)[lane];

        c = c << 1 | (bits >> j & 1) | (bits >> (j + 8) & 1) << 16;
    }
    return c;
}

DEVICE uint32_t level_pair(const uint16_t *levels, uint32_t codes)
{
    return (uint32_t) levels[codes & 0xffff] | (uint32_t) levels[codes >> 16] << 16;
}

/* Two levels that are neighbours in a fragment; zeros for an empty half-tile. */
DEVICE uint32_t levels_at(const uint16_t *levels, const struct device_codes *codes, const uint8_t *block,
                          unsigned half, unsigned lane, unsigned j)
{
    unsigned b = codes->bits[half];

    return b == 0 ? 0 : level_pair(levels + b * 256, code_pair(block + codes->offset[half], b, lane, j));
}

/* Level of K at (token, coordinate), for values that are predicted from it: there coordinates are rows. */
DEVICE uint32_t key_level(const uint16_t *levels, const struct device_codes *codes, const uint8_t *block,
                          unsigned token, unsigned coord)
{
    uint32_t pair =
        levels_at(levels, codes, block, coord >> 3, 4 * (token & 7) + (coord >> 1 & 3), token >> 3);

    return coord & 1 ? pair >> 16 : pair & 0xffff;
}
