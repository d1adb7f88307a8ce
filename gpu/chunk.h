/* Encodes one chunk of one layer, rows of vectors, into the blocks of a page, and decodes it. A head may
 * need the K codes of other heads, so struct chunk_work stores the codes of a layer between the calls:
 * encode the keys of all heads first, then the values. */
#pragma once

#include "gpu/codec.h"

/* Codes and scratch memory; used by one thread. Encoding has codes as [64, r], decoding as [r, 64]: calls of
 * one kind do not use what the other left. */
struct chunk_work {
    uint8_t *codes;       /* [shard heads + 1][64 TABLE_RANK_MAX]: K of every head, V of one */
    const uint8_t **keys; /* by KV head of the table; NULL outside the shard */
    float *codec;
    float *levels, *sums; /* [r, 64], [d, 64] of one head */
    void *memory;         /* that chunk_work_init() allocated */
};

/* For any table of geometry @g and pages of @shard, which lies inside @g. Return: 0; -ENOMEM. */
int chunk_work_init(struct chunk_work *w, const struct geometry *g, struct shard shard);

/* The same in @memory of the caller, chunk_work_bytes() aligned to 64; it needs no chunk_work_deinit(). */
size_t chunk_work_bytes(const struct geometry *g, struct shard shard);
void chunk_work_place(struct chunk_work *w, const struct geometry *g, struct shard shard, void *memory);
void chunk_work_deinit(struct chunk_work *w);

/**
 * chunk_encode() - encode the keys or values of one head into their block of @payload
 * @head:   counted from the first head of the shard
 * @x:      [64, d], row stride in floats
 * @counts: counts of this side; the counts of the chunk are added
 * @w:      values are predicted from the K codes in it: encode the keys of every head of the layer first
 *
 * Return: 0; -EINVAL: a number is not finite.
 */
int chunk_encode(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side, const float *x,
                 size_t row_stride, uint8_t *payload, struct encode_counts *counts, struct chunk_work *w);

/* Unpacks the K codes of all heads of a layer, before chunk_decode_keys() and chunk_decode_values(). */
void chunk_load_keys(const struct page_layout *l, const uint8_t *payload, uint32_t layer,
                     struct chunk_work *w);

/* Decode one head of the chunk and layer of chunk_load_keys() to @x [64, d], with a row stride in floats. The
 * sinks are not read. */
void chunk_decode_keys(const struct page_layout *l, uint32_t layer, uint32_t head, float *x,
                       size_t row_stride, struct chunk_work *w);
void chunk_decode_values(const struct page_layout *l, const uint8_t *payload, uint32_t layer, uint32_t head,
                         float *x, size_t row_stride, struct chunk_work *w);

/* The same for one head and side alone: unpacks the K codes that it needs. */
void chunk_decode(const struct page_layout *l, const uint8_t *payload, uint32_t layer, uint32_t head,
                  enum side side, float *x, size_t row_stride, struct chunk_work *w);
