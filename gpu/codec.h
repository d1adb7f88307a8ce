/*
 * Converts vectors to codes to half-tiles, and back, one KV head at a time. Runs on the best instruction
 * set of the machine (gpu/cpu/ops.h); codes and decoded vectors have the same bits on each of them.
 *
 * Shapes: k and v of one KV head are [n, d] binary32 with a row stride in floats; all are borrowed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/levels.h" /* levels_saturation_limits() */
#include "gpu/page_layout.h"

/* Counts of coordinates, the drift signal of DESIGN 3.3. Encoding adds to them and never resets them. */
struct encode_counts {
    uint64_t coords;    /* coordinates quantised, by side */
    uint64_t saturated; /* of these, coordinates beyond levels_saturation_limits() (alloc/table/levels.h) */
};

struct head_view {
    const struct table *table;
    uint32_t layer, head;
    const struct codec *k, *v;
};

static inline struct head_view head_view(const struct table *t, uint32_t layer, uint32_t head)
{
    return (struct head_view){t, layer, head, table_codec(t, layer, head, SIDE_K),
                              table_codec(t, layer, head, SIDE_V)};
}

/**
 * codec_encode_keys() - quantise the keys of @n tokens of one head: codes only, one byte each
 *
 * Of coordinates with a trellis (alloc/table/trellis.h), a byte is the state of a token, the index of its
 * level. Every 64 tokens, counted from the first, are one chunk with strings of its own; a rest of fewer is
 * encoded as if zeros followed, and its states are those of no page.
 *
 * @codes:   [n, r_K] out
 * @scratch: codec_scratch_floats() floats
 *
 * Return: 0; -EINVAL if an input is NaN or infinite (codes are then undefined).
 */
int codec_encode_keys(struct head_view h, const float *k, size_t row_stride, size_t n, uint8_t *codes,
                      struct encode_counts *counts, float *scratch);

/**
 * codec_encode_values() - quantise values, as the residual of their prediction (DESIGN 3.2)
 * @codes_k: by KV head of the table, [n, r_K] of each: the K codes of the same tokens as stored.
 *           Only the heads of table_predictors() are read
 *
 * The other arguments are those of codec_encode_keys().
 */
int codec_encode_values(struct head_view h, const float *v, size_t row_stride, size_t n,
                        const uint8_t *const *codes_k, uint8_t *codes, struct encode_counts *counts,
                        float *scratch);

/* Reconstruct the vectors [n, d], with a row stride, of @n tokens from their codes; @codes_k as above. */
void codec_decode_keys(struct head_view h, const uint8_t *codes, size_t n, float *k, size_t row_stride,
                       float *scratch);
void codec_decode_values(struct head_view h, const uint8_t *const *codes_k, const uint8_t *codes, size_t n,
                         float *v, size_t row_stride, float *scratch);

size_t codec_scratch_floats(void);

/* Pack the codes [64, r] of both sides into the block of one (layer, head) of a page, and unpack them.
 * Exact inverses. A side whose codes are NULL is neither read nor written. */
void block_pack(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, uint8_t *block);
void block_unpack(struct head_view h, const uint8_t *block, uint8_t *codes_k, uint8_t *codes_v);
