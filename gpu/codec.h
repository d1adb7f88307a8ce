/*
 * From vectors to codes to half-tiles, and back, one KV head at a time. Runs on the best instruction set of
 * the machine (gpu/cpu/ops.h); codes and decoded vectors have the same bits on each.
 *
 * Shapes: k and v of one KV head are [n, d] binary32 with a row stride in floats; all borrowed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/page_layout.h"

/* What encoding saw; added to, never reset. The drift signal of DESIGN 3.3. */
struct encode_counts {
    uint64_t coords;    /* coordinates quantised, by side */
    uint64_t saturated; /* of them, beyond the outermost threshold by more than the outermost cell is wide,
                           taken as twice the distance from that threshold to the outermost level */
};

/*
 * Beyond which a coordinate is saturated. The outermost cells are open; taken as wide as they would be if
 * they were symmetric about their level, that is twice the distance from the threshold to the level. This is
 * defined for one bit too, which has no inner cell.
 */
void codec_saturation_limits(const struct levels *l, unsigned b, float *ret_low, float *ret_high);

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
 * codec_encode_keys() - quantise keys of @n tokens of one head: codes only, one byte each
 * @codes:   [n, r_K] out
 * @scratch: codec_scratch_floats() floats
 *
 * Return: 0; -EINVAL if an input is NaN or infinite (codes then undefined).
 */
int codec_encode_keys(struct head_view h, const float *k, size_t row_stride, size_t n, uint8_t *codes,
                      struct encode_counts *counts, float *scratch);

/**
 * codec_encode_values() - the same of values, as the residual of their prediction (DESIGN 3.2)
 * @codes_k: by KV head of the table, [n, r_K] of each: the K codes of the same tokens as stored. Only those
 * of table_predictors() are looked at
 */
int codec_encode_values(struct head_view h, const float *v, size_t row_stride, size_t n,
                        const uint8_t *const *codes_k, uint8_t *codes, struct encode_counts *counts,
                        float *scratch);

/* Reconstructed vectors [n, d], with a row stride, of @n tokens from their codes; @codes_k as above. */
void codec_decode_keys(struct head_view h, const uint8_t *codes, size_t n, float *k, size_t row_stride,
                       float *scratch);
void codec_decode_values(struct head_view h, const uint8_t *const *codes_k, const uint8_t *codes, size_t n,
                         float *v, size_t row_stride, float *scratch);

size_t codec_scratch_floats(void);

/* Codes [64, r] of both sides to the block of one (layer, head) in a page, and back. Exact inverses. A side
 * whose codes are NULL is left alone. */
void block_pack(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, uint8_t *block);
void block_unpack(struct head_view h, const uint8_t *block, uint8_t *codes_k, uint8_t *codes_v);
