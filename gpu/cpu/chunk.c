/* See chunk.h. */
#include "gpu/chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_CODES ((size_t) CHUNK_TOKENS * TABLE_RANK_MAX) /* of one head and side */

/* Codec, codes and pointers follow each other; the first two are multiples of 64 bytes. */
size_t chunk_work_bytes(const struct geometry *g, struct shard shard)
{
    size_t bytes = codec_scratch_floats() * sizeof(float) + (shard.n_heads + (size_t) 1) * CHUNK_CODES +
                   g->n_kv_heads * sizeof(uint8_t *);

    return (bytes + 63) & ~(size_t) 63;
}

void chunk_work_place(struct chunk_work *w, const struct geometry *g, struct shard shard, void *memory)
{
    *w = (struct chunk_work){.codec = memory};
    w->codes = (uint8_t *) memory + codec_scratch_floats() * sizeof(float);
    w->keys = (const uint8_t **) (w->codes + (shard.n_heads + (size_t) 1) * CHUNK_CODES);
    memset(w->keys, 0, g->n_kv_heads * sizeof(*w->keys));
    for (uint32_t head = 0; head < shard.n_heads; head++)
        w->keys[shard.first_head + head] = w->codes + head * CHUNK_CODES;
}

int chunk_work_init(struct chunk_work *w, const struct geometry *g, struct shard shard)
{
    void *memory = calloc(1, chunk_work_bytes(g, shard));

    if (!memory)
        return -ENOMEM;

    chunk_work_place(w, g, shard, memory);
    w->memory = memory;
    return 0;
}

void chunk_work_deinit(struct chunk_work *w)
{
    free(w->memory);
    *w = (struct chunk_work){0};
}

static uint8_t *chunk_key_codes(const struct chunk_work *w, uint32_t head)
{
    return w->codes + head * CHUNK_CODES;
}

static uint8_t *chunk_value_codes(const struct page_layout *l, const struct chunk_work *w)
{
    return w->codes + l->shard.n_heads * CHUNK_CODES;
}

static struct head_view chunk_view_of(const struct page_layout *l, uint32_t layer, uint32_t head)
{
    return head_view(l->table, layer, l->shard.first_head + head);
}

static int chunk_encode_keys(const struct page_layout *l, uint32_t layer, uint32_t head, const float *k,
                             size_t row_stride, uint8_t *payload, struct encode_counts *counts,
                             struct chunk_work *w)
{
    struct head_view view = chunk_view_of(l, layer, head);
    int r = codec_encode_keys(view, k, row_stride, CHUNK_TOKENS, chunk_key_codes(w, head), counts, w->codec);

    if (r < 0)
        return r;

    block_pack(view, chunk_key_codes(w, head), NULL, payload + page_block_off(l, layer, head));
    return 0;
}

static int chunk_encode_values(const struct page_layout *l, uint32_t layer, uint32_t head, const float *v,
                               size_t row_stride, uint8_t *payload, struct encode_counts *counts,
                               struct chunk_work *w)
{
    struct head_view view = chunk_view_of(l, layer, head);
    int r = codec_encode_values(view, v, row_stride, CHUNK_TOKENS, w->keys, chunk_value_codes(l, w), counts,
                                w->codec);

    if (r < 0)
        return r;

    block_pack(view, NULL, chunk_value_codes(l, w), payload + page_block_off(l, layer, head));
    return 0;
}

int chunk_encode(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side, const float *x,
                 size_t row_stride, uint8_t *payload, struct encode_counts *counts, struct chunk_work *w)
{
    if (side == SIDE_K)
        return chunk_encode_keys(l, layer, head, x, row_stride, payload, counts, w);

    return chunk_encode_values(l, layer, head, x, row_stride, payload, counts, w);
}

void chunk_decode(const struct page_layout *l, const uint8_t *payload, uint32_t layer, uint32_t head,
                  enum side side, float *x, size_t row_stride, struct chunk_work *w)
{
    struct head_view view = chunk_view_of(l, layer, head);
    const uint8_t *block = payload + page_block_off(l, layer, head);
    struct head_run run = table_predictors(l->table, view.head);

    if (side == SIDE_K) {
        block_unpack(view, block, chunk_key_codes(w, head), NULL);
        codec_decode_keys(view, chunk_key_codes(w, head), CHUNK_TOKENS, x, row_stride, w->codec);
        return;
    }

    for (uint32_t h = run.first; h < run.first + run.n; h++) {
        uint32_t in_shard = h - l->shard.first_head;

        block_unpack(chunk_view_of(l, layer, in_shard), payload + page_block_off(l, layer, in_shard),
                     chunk_key_codes(w, in_shard), NULL);
    }

    block_unpack(view, block, NULL, chunk_value_codes(l, w));
    codec_decode_values(view, w->keys, chunk_value_codes(l, w), CHUNK_TOKENS, x, row_stride, w->codec);
}
