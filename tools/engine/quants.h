/*
 * The tensor types of GGUF files that the engine can read, and how their blocks decode to binary32.
 *
 * A row of a tensor is a run of blocks; a block holds a fixed number of weights. quants.c describes every
 * block.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Numbers of the types in the file. */
enum quant_id {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_BF16 = 30,
};

#define QUANT_BLOCK_MAX 256 /* weights in the largest block */

struct quant_type {
    uint32_t id;
    const char *name;
    uint32_t block_weights;
    uint32_t block_bytes;
    /* @src: @n_blocks blocks, any alignment; @dst: block_weights * @n_blocks numbers. */
    void (*decode)(const uint8_t *src, size_t n_blocks, float *dst);
};

/* NULL if the engine cannot read the type. */
const struct quant_type *quant_type_of(uint32_t id);

/* A name for messages, also of types that exist but cannot be read; "unknown type" otherwise. */
const char *quant_type_name(uint32_t id);

/* Scale and minimum @j (0..7) of the 12 bytes of 6-bit numbers that Q4_K and Q5_K share. */
static inline void quant_k_scale_min(const uint8_t packed[12], unsigned j, uint8_t *ret_scale,
                                     uint8_t *ret_min)
{
    if (j < 4) {
        *ret_scale = packed[j] & 63;
        *ret_min = packed[j + 4] & 63;
    } else {
        *ret_scale = (uint8_t) ((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
        *ret_min = (uint8_t) ((packed[j + 4] >> 4) | (packed[j] >> 6) << 4);
    }
}
