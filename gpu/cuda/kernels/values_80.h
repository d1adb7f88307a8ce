/* Values of attend_80.cu, in rank space: [16 columns, 32 tokens] levels x weights, both as bytes. Codes of
 * K that values are predicted from have the layout of V after lanes have exchanged their words: tokens are
 * columns then. Tiles with a half-tile of more than four bits are products of binary16. */
#pragma once

#include "gpu/cuda/kernels/weights_80.h"

/* Finds the place of the codes of every tile: keys of the predictors one after the other, then V. */
DEVICE void put_tiles(const struct device_table *t, uint32_t layer_number, const struct device_head *head,
                      struct shared_80 s)
{
    const struct device_head *layer = t->heads + layer_number * t->n_kv_heads;

    for (uint32_t tile = threadIdx.x; tile < t->columns_max / 16; tile += LAUNCH_THREADS) {
        uint32_t *words = (uint32_t *) (s.base + s.at.tiles) + 4 * tile, within = tile, what = 0;

        for (uint32_t i = 0; i <= head->n_predictors && what == 0; i++) {
            bool is_key = i < head->n_predictors;
            const struct device_head *from = is_key ? layer + head->first_predictor + i : head;
            const struct device_codes *codes = is_key ? &from->k : &from->v;

            if (within >= codes->n_half / 2u) {
                within -= codes->n_half / 2u;
                continue;
            }
            what = TILE_THERE | (is_key ? TILE_KEY : 0) | (from == head ? 0 : TILE_ELSEWHERE);
            words[0] = codes->offset[2 * within] + (from == head ? 0 : from->block);
            words[1] = codes->offset[2 * within + 1] + (from == head ? 0 : from->block);
            words[2] = codes->bits[2 * within] | (uint32_t) codes->bits[2 * within + 1] << 8;
        }
        words[3] = what;
    }
}

DEVICE struct value_tile tile_at(const struct device_table *t, struct shared_80 s, uint32_t tile)
{
    struct value_tile v = {{0, 0}, {0, 0}, false, false, false};

    if (tile < t->columns_max / 16) {
        struct words4 w = words_at(s.base + s.at.tiles + 16 * tile);

        v = {{w.word[0], w.word[1]},
             {w.word[2] & 0xff, w.word[2] >> 8 & 0xff},
             (w.word[3] & TILE_THERE) != 0,
             (w.word[3] & TILE_KEY) != 0,
             (w.word[3] & TILE_ELSEWHERE) != 0};
    }
    return v;
}

/* Levels of at most four bits of a lane: coordinates g of half-tiles 0 and 1, tokens 2t + 8j, then 2t + 1 +
 * 8j, j = 4q .. */
DEVICE void value_bytes(struct shared_80 s, const struct value_tile *v, const uint8_t *block, unsigned lane,
                        unsigned q, uint32_t ret[4])
{
    UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const uint8_t *at = block + v->offset[half];
        unsigned b = v->bits[half];
        struct words4 table = narrow_table(s, v->is_key ? 1 : 2, b);
        uint32_t nibbles;

        if (b == NARROW_BITS) { /* the common case, without further branches */
            nibbles = nibbles_of(at, NARROW_BITS, lane, q);
            nibbles = v->is_key ? transpose_8x8(nibbles) : nibbles;
            narrow_levels_of_8(table, NARROW_BITS, nibbles, &ret[half], &ret[half + 2]);
        } else if (b > 0) {
            nibbles = nibbles_of(at, b, lane, q);
            nibbles = v->is_key ? transpose_8x8(nibbles) : nibbles;
            narrow_levels_of_8(table, NARROW_BITS - 1, nibbles, &ret[half], &ret[half + 2]);
        } else {
            ret[half] = ret[half + 2] = 0;
        }
    }
}

/* Adds a tile of at most four bits, from the blocks of this head, which follow each other at @stage. */
template <class S>
DEVICE void add_bytes(struct shared_80 s, const struct value_tile *v, const uint8_t *stage, unsigned lane,
                      const struct softmax_80<S> *x, float c[S::ROW_TILES][4])
{
    int32_t sums[S::WEIGHT_TILES][4] = {{0}};

    NOT_UNROLLED
    for (unsigned page = 0; page < 2; page++) {
        struct words4 w[S::WEIGHT_TILES];

        UNROLL
        for (unsigned tile = 0; tile < S::WEIGHT_TILES; tile++)
            w[tile] = words_at(weight_words<S>(s, page, tile, lane >> 2, lane & 3));
        UNROLL
        for (unsigned q = 0; q < 2; q++) {
            uint32_t levels[4];

            value_bytes(s, v, stage + page * s.at.block_bytes, lane, q, levels);
            UNROLL
            for (unsigned tile = 0; tile < S::WEIGHT_TILES; tile++)
                mma_16x8x32(sums[tile], levels, w[tile].word[2 * q], w[tile].word[2 * q + 1]);
        }
    }
    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            unsigned upper = S::BOTH ? 0 : 2 * tile, lower = S::BOTH ? 0 : 2 * tile + 1;
            float sum = S::BOTH ? (float) sums[0][i] : (float) (sums[upper][i] * 256 + sums[lower][i]);

            c[tile][i] +=
                sum * (S::BOTH && (lane & 2) == 0 ? 256 * x->add[tile][i & 1] : x->add[tile][i & 1]);
        }
    }
}

/* A pair of levels in binary16 of any width: coordinate g of half-tile
 * @half, tokens 8 j + 2t and 8 j + 2t + 1. */
DEVICE uint32_t value_pair(struct shared_80 s, const struct value_tile *v, const uint8_t *block,
                           unsigned half, unsigned lane, unsigned j)
{
    unsigned b = v->bits[half];
    uint32_t codes;

    if (b == 0)
        return 0;
    codes = code_pair(block + v->offset[half], b, lane, j);
    return wide_pair(wide_table(s, v->is_key ? 0 : 1), b, v->is_key ? transpose_8x8(codes) : codes);
}

/* Adds a tile of any width, from the block of any head, one block in each page. */
template <class S>
DEVICE void add_halves(struct shared_80 s, const struct value_tile *v, const uint8_t *first,
                       const uint8_t *second, unsigned lane, const struct softmax_80<S> *x,
                       float c[S::ROW_TILES][4])
{
    const uint16_t *weights = (const uint16_t *) (s.base + s.at.weights16);
    float sums[S::ROW_TILES][4] = {{0}};

    NOT_UNROLLED
    for (unsigned page = 0; page < 2; page++) {
        NOT_UNROLLED
        for (unsigned k = 0; k < TOKENS / 16; k++) {
            uint32_t levels[4]; /* coordinates g, g + 8 of tokens 2t, then of 2t + 8 */

            UNROLL
            for (unsigned i = 0; i < 4; i++)
                levels[i] = value_pair(s, v, page == 0 ? first : second, i & 1, lane, 2 * k + (i >> 1));
            UNROLL
            for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
                unsigned n = lane >> 2;
                bool is_row = !S::BOTH || n < 4;
                const uint16_t *w = weights +
                                    (page * S::N_ROWS + 8 * tile + (is_row ? n : 0)) * ATTEND_80_WEIGHT_LD +
                                    16 * k + 2 * (lane & 3);
                uint32_t low = *(const uint32_t *) w, high = *(const uint32_t *) (w + 8);

                mma_16x8x16(sums[tile], levels, is_row ? low : 0, is_row ? high : 0);
            }
        }
    }
    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            c[tile][i] += sums[tile][i] * (WEIGHT_ONE * x->add[tile][i & 1]);
    }
}

/* Sums of tile @tile of columns, row tile @row_tile of 8 rows, for this lane. */
template <class S> DEVICE float *sums_at(struct shared_80 s, uint32_t tile, unsigned row_tile, unsigned lane)
{
    return (float *) (s.base + s.at.sums) + ((tile * S::ROW_TILES + row_tile) * 32 + lane) * 4;
}

/* The columns of this warp in a pair of pages: earlier sums are scaled to the new maxima, then weights
 * times levels are added. Sums are in shared memory, so that the code exists once. */
template <class S>
DEVICE void add_values(const struct device_table *t, struct shared_80 s, const uint8_t *stage,
                       const uint8_t *const payloads[2], unsigned warp, unsigned lane,
                       const struct softmax_80<S> *x)
{
    NOT_UNROLLED
    for (uint32_t i = warp; i < t->columns_max / 16; i += WARPS) {
        struct value_tile v = tile_at(t, s, i);
        float c[S::ROW_TILES][4];

        if (!v.is_there)
            break;
        UNROLL
        for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
            UNROLL
            for (unsigned y = 0; y < 4; y++)
                c[tile][y] = sums_at<S>(s, i, tile, lane)[y] * x->keep[tile][y & 1];
        }
        if (v.is_elsewhere)
            /* rare: any width, read from global memory */
            add_halves<S>(s, &v, payloads[0], payloads[1], lane, x, c);
        else if (v.bits[0] <= NARROW_BITS && v.bits[1] <= NARROW_BITS)
            add_bytes<S>(s, &v, stage, lane, x, c);
        else
            add_halves<S>(s, &v, stage, stage + s.at.block_bytes, lane, x, c);
        UNROLL
        for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
            UNROLL
            for (unsigned y = 0; y < 4; y++)
                sums_at<S>(s, i, tile, lane)[y] = c[tile][y];
        }
    }
}
