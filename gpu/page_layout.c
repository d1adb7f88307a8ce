/* See page_layout.h. */
#include "gpu/page_layout.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "gpu/dtype.h"
#include "gpu/page_constants.h"

_Static_assert(EXACT_F32 == 1 + (int) DTYPE_F32 && EXACT_F16 == 1 + (int) DTYPE_F16 &&
                   EXACT_BF16 == 1 + (int) DTYPE_BF16,
               "number types of exact tables");

static bool page_layout_sinks_bytes(const struct table *t, struct shard s, size_t *ret_bytes)
{
    size_t heads, rows;

    return checked_mul3(t->geometry.n_layers, s.n_heads, 2, &heads) && checked_mul(heads, t->n_sink, &rows) &&
           checked_mul3(rows, t->geometry.d, sizeof(uint16_t), ret_bytes);
}

static bool layout_page_sizes(struct page_layout *l, size_t blocks_bytes)
{
    size_t sinks;

    if (!page_layout_sinks_bytes(l->table, l->shard, &sinks) ||
        !checked_add(blocks_bytes, sinks, &l->payload_bytes[PAGE_FIRST]))
        return false;

    l->payload_bytes[PAGE_REST] = blocks_bytes;
    l->sinks_off = blocks_bytes;
    for (int c = PAGE_FIRST; c <= PAGE_REST; c++)
        if (!checked_add(l->payload_bytes[c], PAGE_HEADER_BYTES, &l->page_bytes[c]) ||
            !checked_align(l->page_bytes[c], PAGE_ALIGN, &l->slot_bytes[c]))
            return false;
    return true;
}

bool page_layout_lacks_heads(const struct table *table, struct shard shard)
{
    return table->v_from == PREDICT_LAYER && shard.n_heads != table->geometry.n_kv_heads;
}

int page_layout_init(struct page_layout *l, const struct table *table, struct shard shard)
{
    const struct geometry *g = &table->geometry;
    _cleanup_(freep) size_t *off = NULL;
    struct page_layout layout = {.table = table, .shard = shard};
    size_t n_blocks, n_off, at = 0, i = 0;

    if (shard.n_heads == 0 || shard.first_head >= g->n_kv_heads ||
        shard.n_heads > g->n_kv_heads - shard.first_head)
        return -EINVAL;
    if (page_layout_lacks_heads(table, shard))
        return -EINVAL;
    if (!checked_mul(g->n_layers, shard.n_heads, &n_blocks) || !checked_add(n_blocks, 1, &n_off))
        return -EOVERFLOW;

    off = calloc(n_off, sizeof(*off));
    if (!off)
        return -ENOMEM;

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < shard.n_heads; head++) {
            const struct codec *v = table_codec(table, layer, shard.first_head + head, SIDE_V);
            size_t bits =
                (size_t) table_codec(table, layer, shard.first_head + head, SIDE_K)->code_bits + v->code_bits;

            layout.r_in_max = v->r_in > layout.r_in_max ? v->r_in : layout.r_in_max;
            off[i++] = at;
            if (!checked_add(at, bits * CHUNK_TOKENS / 8, &at))
                return -EOVERFLOW;
        }
    off[i] = at;
    if (!layout_page_sizes(&layout, at))
        return -EOVERFLOW;

    layout.constants = page_constants_new(table);
    if (!layout.constants)
        return -ENOMEM;

    layout.block_off = take_ptr(off);
    *l = layout;
    return 0;
}

void page_layout_deinit(struct page_layout *l)
{
    free(l->block_off);
    free(l->constants);
    *l = (struct page_layout){0};
}

size_t page_sink_off(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side)
{
    size_t row_bytes = (size_t) l->table->geometry.d * sizeof(uint16_t);
    size_t index = ((size_t) layer * l->shard.n_heads + head) * 2 + (size_t) side;

    assert(layer < l->table->geometry.n_layers && head < l->shard.n_heads);
    return l->sinks_off + index * l->table->n_sink * row_bytes;
}
