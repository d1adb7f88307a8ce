/*
 * The place of everything inside a page. Pure arithmetic over a table and a shard;
 * gpu/README.md draws it to the bit.
 *
 *     page    = header (PAGE_HEADER_BYTES, proto/page.h) + payload
 *     payload = for each layer, for each head of the shard: [K half-tiles][V half-tiles]
 *               class first: then the sinks, [layer][head][side][n_sink][d] binary16 of x - mean
 *
 * In place of half-tiles a page of an exact table has the vectors, [64][d] numbers of the table's type.
 *
 * Half-tile: 64 tokens x 8 coordinates at b bits, 64 b bytes: planes of 8, 4, 2, 1 bits, widest first,
 * holding the bits of the code from the most significant down (b = 7: 4, 2, 1). Inside a plane of width p,
 * for token n and coordinate c:
 *
 *                                      K                V
 *     field j                          n >> 3           n >> 3
 *     row g of the matrix fragment     n & 7            c
 *     t, h                             c >> 1, c & 1    (n & 7) >> 1, n & 1
 *     lane                             4 g + t          4 g + t
 *
 *     p = 8    u32 word [j >> 1][lane], shift 8 (j & 1) + 16 h
 *     p = 4    u32 word [j >> 2][lane], shift 4 (j & 3) + 16 h
 *     p = 2    u32 word [lane],         shift 2 j + 16 h
 *     p = 1    u16 word [lane],         shift j + 8 h
 *
 * Words are little-endian. These are the A fragments of a 16x8x16 matrix instruction: tokens are rows for K,
 * coordinates are rows for V.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"

struct page_constants;

#define CHUNK_TOKENS 64
#define PAGE_HEADER_BYTES 128
#define PAGE_ALIGN 128 /* slots start at multiples; the rounding is counted in true bpd */

enum page_class {
    PAGE_FIRST = 0, /* chunk 0 of a sequence: carries the sinks */
    PAGE_REST = 1,
};

/* A range of KV heads, the same in every layer. */
struct shard {
    uint32_t first_head;
    uint32_t n_heads;
};

struct page_layout {
    const struct table *table; /* borrowed */
    struct shard shard;
    size_t payload_bytes[2]; /* by class */
    size_t page_bytes[2];    /* header + payload */
    size_t slot_bytes[2];    /* page_bytes rounded up to PAGE_ALIGN */
    size_t sinks_off;        /* in the payload of class first */
    uint32_t r_in_max;       /* columns of the widest dec of a V codec of the shard */
    size_t *block_off; /* [n_layers * shard.n_heads + 1] offset of each (layer, head) block in the payload */
    struct page_constants *constants; /* gpu/page_constants.h */
};

/**
 * page_layout_init() - compute the layout of @table for @shard
 *
 * Return: 0; -EINVAL: the shard is outside the heads of the table, or lacks heads that its values are
 *         predicted from, see page_layout_lacks_heads(); -EOVERFLOW; -ENOMEM.
 */
int page_layout_init(struct page_layout *l, const struct table *table, struct shard shard);

/* Whether V of a head of @shard is predicted from heads outside it, so that pages of
 * @shard could not be decoded alone. */
bool page_layout_lacks_heads(const struct table *table, struct shard shard);
void page_layout_deinit(struct page_layout *l);

/* enum dtype of the numbers of an exact table's pages. */
static inline unsigned exact_dtype(const struct table *t)
{
    return (unsigned) t->exact.type - 1;
}

/* @head is counted from the first head of the shard. */
static inline size_t page_block_off(const struct page_layout *l, uint32_t layer, uint32_t head)
{
    return l->block_off[layer * l->shard.n_heads + head];
}

/* Offset of the V half-tiles inside a block: the bytes of the K half-tiles. */
static inline size_t page_v_off(const struct codec *k)
{
    return (size_t) k->code_bits * CHUNK_TOKENS / 8;
}

/* Offset of one head and side in the payload. */
static inline size_t page_side_off(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side)
{
    const struct codec *k = table_codec(l->table, layer, l->shard.first_head + head, SIDE_K);

    return page_block_off(l, layer, head) + (side == SIDE_V ? page_v_off(k) : 0);
}

/* Offset, in a payload of class first, of the binary16 sink rows [n_sink, d] of one (layer, head, side). */
size_t page_sink_off(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side);
