/* Encodes and decodes both sides of one head, for tables whose values need no keys of other heads.
 * gpu/codec.h has one call per side, because the keys of all heads may have to come first. */
#pragma once

#include <assert.h>

#include "gpu/codec.h"

/* The codes as the predictors of a value: by head of the table. */
static inline const uint8_t *const *one_head_keys(struct head_view h, const uint8_t *codes_k,
                                                  const uint8_t *ret[GEOMETRY_HEADS_MAX])
{
    assert(h.table->v_from != PREDICT_LAYER || h.table->geometry.n_kv_heads == 1);
    ret[h.head] = codes_k;
    return ret;
}

static inline int one_head_encode(struct head_view h, const float *k, const float *v, size_t row_stride,
                                  size_t n, uint8_t *codes_k, uint8_t *codes_v,
                                  struct encode_counts counts[2], float *scratch)
{
    const uint8_t *keys[GEOMETRY_HEADS_MAX];
    int r = codec_encode_keys(h, k, row_stride, n, codes_k, &counts[SIDE_K], scratch);

    return r < 0 ? r
                 : codec_encode_values(h, v, row_stride, n, one_head_keys(h, codes_k, keys), codes_v,
                                       &counts[SIDE_V], scratch);
}

/* The vectors of either side may be NULL. */
static inline void one_head_decode(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v,
                                   size_t n, float *k, float *v, size_t row_stride, float *scratch)
{
    const uint8_t *keys[GEOMETRY_HEADS_MAX];

    if (k)
        codec_decode_keys(h, codes_k, n, k, row_stride, scratch);
    if (v)
        codec_decode_values(h, one_head_keys(h, codes_k, keys), codes_v, n, v, row_stride, scratch);
}
