/* Packs the codes of a chunk into the block of one (layer, head) in a page, and unpacks them. See codec.h. */
#include <string.h>

#include "gpu/codec.h"
#include "gpu/half_tile.h"

/* Gathers column group @half of codes [64, r] into [64][8], token-major. */
static void block_gather(const uint8_t *codes, size_t r, size_t half, uint8_t ret[HALF_TILE_CODES])
{
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        memcpy(ret + 8 * t, codes + t * r + 8 * half, 8);
}

static void block_scatter(const uint8_t fragment[HALF_TILE_CODES], size_t r, size_t half, uint8_t *codes)
{
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        memcpy(codes + t * r + 8 * half, fragment + 8 * t, 8);
}

static void block_pack_side(const struct table *t, const struct codec *c, enum side side,
                            const uint8_t *codes, uint8_t *at)
{
    uint8_t fragment[HALF_TILE_CODES];

    for (size_t half = 0; half < c->n_half && c->bits[half] > 0; half++) {
        unsigned state_bits = t->levels[side][c->bits[half]].state_bits;

        block_gather(codes, c->r, half, fragment);
        if (state_bits > 0)
            half_tile_to_codes(c->bits[half], state_bits, fragment);
        if (side == SIDE_V)
            half_tile_transpose(fragment, fragment);
        half_tile_pack(fragment, c->bits[half], at);
        at += half_tile_bytes(c->bits[half]);
    }
}

static void block_unpack_side(const struct table *t, const struct codec *c, enum side side, const uint8_t *at,
                              uint8_t *codes)
{
    uint8_t fragment[HALF_TILE_CODES];

    for (size_t half = 0; half < c->n_half; half++) {
        unsigned state_bits = t->levels[side][c->bits[half]].state_bits;

        if (c->bits[half] == 0) {
            memset(fragment, 0, sizeof(fragment));
        } else {
            half_tile_unpack(at, c->bits[half], fragment);
            at += half_tile_bytes(c->bits[half]);
            if (state_bits > 0)
                half_tile_to_states(c->bits[half], state_bits, side, fragment);
            if (side == SIDE_V)
                half_tile_transpose(fragment, fragment);
        }

        block_scatter(fragment, c->r, half, codes);
    }
}

void block_pack(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, uint8_t *block)
{
    if (codes_k)
        block_pack_side(h.table, h.k, SIDE_K, codes_k, block);
    if (codes_v)
        block_pack_side(h.table, h.v, SIDE_V, codes_v, block + page_v_off(h.k));
}

void block_unpack(struct head_view h, const uint8_t *block, uint8_t *codes_k, uint8_t *codes_v)
{
    if (codes_k)
        block_unpack_side(h.table, h.k, SIDE_K, block, codes_k);
    if (codes_v)
        block_unpack_side(h.table, h.v, SIDE_V, block + page_v_off(h.k), codes_v);
}
