/*
 * From vectors to codes to half-tiles, and back, one KV head at a time. Runs on the best instruction set of the
 * machine (gpu/ops.h); codes and decoded vectors have the same bits on each.
 *
 * Shapes: k and v of one KV head are [n, d] binary32 with a row stride in floats; all borrowed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/layout.h"

/* What encoding saw; added to, never reset. The drift signal of DESIGN 3.3. */
struct encode_counts {
    uint64_t coords;    /* coordinates quantised, by side */
    uint64_t saturated; /* of them, beyond the outermost threshold by more than the outermost cell is wide, taken as
                           twice the distance from that threshold to the outermost level */
};

struct head_view {
    const struct table *table;
    const struct codec *k, *v; /* of one (layer, head) */
};

static inline struct head_view head_view(const struct table *t, uint32_t layer, uint32_t head)
{
    return (struct head_view) { t, table_codec(t, layer, head, SIDE_K), table_codec(t, layer, head, SIDE_V) };
}

/**
 * codec_encode() - quantise @n tokens of one head: codes only, one byte each
 * @codes_k: [n, r_K] out
 * @codes_v: [n, r_V] out
 * @scratch: codec_scratch_floats() floats
 *
 * DESIGN 3.2: V is coded as the residual of its prediction from the K codes as stored.
 *
 * Return: 0; -EINVAL if an input is NaN or infinite (outputs then undefined).
 */
int codec_encode(struct head_view h, const float *k, const float *v, size_t row_stride, size_t n, uint8_t *codes_k,
                 uint8_t *codes_v, struct encode_counts counts[2], float *scratch);

/* Reconstructed vectors of @n tokens from their codes: k, v [n, d] with a row stride. Either may be NULL, and so may
 * codes that are then not needed: V's without @v; K's without @k unless V is predicted from them. */
void codec_decode(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, size_t n, float *k, float *v,
                  size_t row_stride, float *scratch);

size_t codec_scratch_floats(void);

/* Codes [64, r] of both sides to the block of one (layer, head) in a page, and back. Exact inverses. */
void block_pack(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, uint8_t *block);
void block_unpack(struct head_view h, const uint8_t *block, uint8_t *codes_k, uint8_t *codes_v);
