/* See chunk.h. */
#include "gpu/chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cpu/ops.h"
#include "gpu/half_tile.h"

#define CHUNK_CODES ((size_t) CHUNK_TOKENS * TABLE_RANK_MAX) /* of one head and side */

/* [r, 64] or [d, 64]: two half-tiles at a time are stored, so r may be d rounded up to 16. */
static size_t chunk_plane_floats(const struct geometry *g)
{
    return ((size_t) g->d + 15) / 16 * 16 * CHUNK_TOKENS;
}

/* Floats, codes and pointers follow each other; the first two are multiples of 64 bytes. */
static size_t chunk_work_floats(const struct geometry *g)
{
    return codec_scratch_floats() + 2 * chunk_plane_floats(g);
}

size_t chunk_work_bytes(const struct geometry *g, struct shard shard)
{
    size_t bytes = chunk_work_floats(g) * sizeof(float) + (shard.n_heads + (size_t) 1) * CHUNK_CODES +
                   g->n_kv_heads * sizeof(uint8_t *);

    return (bytes + 63) & ~(size_t) 63;
}

void chunk_work_place(struct chunk_work *w, const struct geometry *g, struct shard shard, void *memory)
{
    *w = (struct chunk_work){.codec = memory};
    w->levels = w->codec + codec_scratch_floats();
    w->sums = w->levels + chunk_plane_floats(g);
    w->codes = (uint8_t *) memory + chunk_work_floats(g) * sizeof(float);
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

/* ---- decode ---- */

/* Unpacks one side of a block to codes [r, 64]. K's half-tiles have tokens as rows, V's have coordinates as
 * rows (gpu/README.md); 8 codes of a coordinate and of neighbouring tokens then lie next to each other. */
static void chunk_unpack(const struct table *t, const struct codec *c, enum side side, const uint8_t *at,
                         uint8_t *codes)
{
    uint8_t blocks[CHUNK_TOKENS / 8][8][8], *all = &blocks[0][0][0]; /* [8 tokens][coordinate][token] */

    for (size_t half = 0; half < c->n_half; half++, codes += HALF_TILE_CODES) {
        unsigned state_bits = t->levels[side][c->bits[half]].state_bits;

        if (c->bits[half] == 0) {
            memset(codes, 0, HALF_TILE_CODES);
            continue;
        }

        half_tile_unpack(at, c->bits[half], all);
        at += half_tile_bytes(c->bits[half]);
        if (state_bits > 0)
            half_tile_to_states(c->bits[half], state_bits, side, all);
        if (side == SIDE_K)
            half_tile_transpose(all, all);
        for (size_t i = 0; i < 8; i++)
            for (size_t j = 0; j < CHUNK_TOKENS / 8; j++)
                memcpy(codes + i * CHUNK_TOKENS + 8 * j, blocks[j][i], 8);
    }
}

/* sums [d, 64] += the @codes of one codec by the columns of @m that belong to them. */
static void chunk_add(const struct page_layout *l, enum side side, const struct codec *c,
                      const uint8_t *codes, struct matrix_in m, struct chunk_work *w)
{
    const struct ops *ops = ops_best();
    size_t d = l->table->geometry.d;

    if (c->r == 0)
        return;

    for (size_t half = 0; half < c->n_half; half++) {
        unsigned b = c->bits[half];
        const struct levels *levels = &l->table->levels[side][b];
        size_t at = half * HALF_TILE_CODES;

        if (b == 0)
            memset(w->levels + at, 0, HALF_TILE_CODES * sizeof(float));
        else
            ops->lookup(levels, levels_index_bits(levels, b), codes + at, HALF_TILE_CODES, w->levels + at);
    }
    ops->matmul_ordered(d, CHUNK_TOKENS, c->r, m, (struct matrix_in){w->levels, CHUNK_TOKENS},
                        (struct matrix_out){w->sums, CHUNK_TOKENS});
}

static void chunk_begin_sums(const float *mean, size_t d, float *sums)
{
    for (size_t i = 0; i < d; i++)
        for (size_t t = 0; t < CHUNK_TOKENS; t++)
            sums[i * CHUNK_TOKENS + t] = mean[i];
}

/* x [64, d] := sums transposed */
static void chunk_end_sums(const float *sums, size_t d, float *x, size_t row_stride)
{
    const struct ops *ops = ops_best();
    size_t i = 0;

    for (; i + OPS_LANES <= d; i += OPS_LANES)
        for (size_t t = 0; t < CHUNK_TOKENS; t += OPS_LANES)
            ops->transpose(sums + i * CHUNK_TOKENS + t, CHUNK_TOKENS, x + t * row_stride + i, row_stride);
    for (; i < d; i++)
        for (size_t t = 0; t < CHUNK_TOKENS; t++)
            x[t * row_stride + i] = sums[i * CHUNK_TOKENS + t];
}

static void chunk_load_heads(const struct page_layout *l, const uint8_t *payload, uint32_t layer,
                             struct head_run run, struct chunk_work *w)
{
    for (uint32_t h = run.first; h < run.first + run.n; h++) {
        uint32_t head = h - l->shard.first_head;

        chunk_unpack(l->table, chunk_view_of(l, layer, head).k, SIDE_K,
                     payload + page_block_off(l, layer, head), chunk_key_codes(w, head));
    }
}

void chunk_load_keys(const struct page_layout *l, const uint8_t *payload, uint32_t layer,
                     struct chunk_work *w)
{
    chunk_load_heads(l, payload, layer, (struct head_run){l->shard.first_head, l->shard.n_heads}, w);
}

void chunk_decode_keys(const struct page_layout *l, uint32_t layer, uint32_t head, float *x,
                       size_t row_stride, struct chunk_work *w)
{
    const struct codec *c = chunk_view_of(l, layer, head).k;
    size_t d = l->table->geometry.d;

    chunk_begin_sums(c->mean, d, w->sums);
    chunk_add(l, SIDE_K, c, chunk_key_codes(w, head), (struct matrix_in){c->dec + c->n_pred, c->r_in}, w);
    chunk_end_sums(w->sums, d, x, row_stride);
}

/* The order of the sums is that of codec_decode_values(): predictors in the order of heads, then the own
 * codes. */
void chunk_decode_values(const struct page_layout *l, const uint8_t *payload, uint32_t layer, uint32_t head,
                         float *x, size_t row_stride, struct chunk_work *w)
{
    struct head_view view = chunk_view_of(l, layer, head);
    struct head_run run = table_predictors(l->table, view.head);
    struct matrix_in m = {view.v->dec, view.v->r_in};
    size_t d = l->table->geometry.d;

    chunk_begin_sums(view.v->mean, d, w->sums);
    for (uint32_t h = run.first; view.v->n_pred > 0 && h < run.first + run.n; h++) {
        const struct codec *k = table_codec(l->table, layer, h, SIDE_K);

        chunk_add(l, SIDE_K, k, w->keys[h], m, w);
        m.p += k->r;
    }

    chunk_unpack(l->table, view.v, SIDE_V, payload + page_block_off(l, layer, head) + page_v_off(view.k),
                 chunk_value_codes(l, w));
    m.p = view.v->dec + view.v->n_pred;
    chunk_add(l, SIDE_V, view.v, chunk_value_codes(l, w), m, w);
    chunk_end_sums(w->sums, d, x, row_stride);
}

void chunk_decode(const struct page_layout *l, const uint8_t *payload, uint32_t layer, uint32_t head,
                  enum side side, float *x, size_t row_stride, struct chunk_work *w)
{
    uint32_t of_table = l->shard.first_head + head;

    if (side == SIDE_K) {
        chunk_load_heads(l, payload, layer, (struct head_run){of_table, 1}, w);
        chunk_decode_keys(l, layer, head, x, row_stride, w);
    } else {
        chunk_load_heads(l, payload, layer, table_predictors(l->table, of_table), w);
        chunk_decode_values(l, payload, layer, head, x, row_stride, w);
    }
}
