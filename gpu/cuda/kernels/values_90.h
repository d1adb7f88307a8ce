/*
 * Weights and values in attend_90.cu. Every warp computes the weights of its own 16 tokens for all rows,
 * and sums its own columns of values for all 64 tokens; weights pass through shared memory.
 *
 * All warps use one reference per row, BELOW the largest score of the row so far. They raise it,
 * together, only when a score is more than RAISE above it: weights are binary16, which is as exact
 * at 2^15 as at 1. So the smallest weights, of many keys beside a large one, are still exact to
 * 2^-21 of the largest. Sums are binary32.
 */
#pragma once

#include "gpu/cuda/kernels/block_90.h"

#define BELOW 7.0f
#define RAISE 15.0f /* 2^15 is below the largest binary16 number */

/* The sums of a lane. For rows 8 n + 2 t + i: the reference and the sum of the weights of its tokens. For
 * tiles warp + 4 x of columns: sums of weights times levels. */
template <class S> struct sums_90 {
    float reference[S::ROW_TILES][2], total[S::ROW_TILES][2];
    float columns[S::VALUE_TILES][S::ROW_TILES][4];
};

/* ---- weights ---- */

/* Sets scores of keys that a row does not see below all others. */
template <class S>
DEVICE void hide(const struct work *w, const struct piece *p, float scores[S::ROW_TILES][4])
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            uint32_t from, to, token = 16 * warp + lane / 4 + (i >> 1) * 8;

            seen_by_row(w, p, 8 * n + 2 * (lane % 4) + (i & 1), &from, &to);
            if (token < from || token >= to)
                scores[n][i] = -INFINITY;
        }
    }
}

/* Stores weights in binary16, tokens g and g + 8 as a pair, where load_weights() reads them. */
template <class S>
DEVICE void store_weights(const float reference[S::ROW_TILES][2], const float scores[S::ROW_TILES][4],
                          uint32_t *weights, uint32_t ret[S::ROW_TILES][2])
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32, g = lane / 4;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            ret[n][i] = pack_halves(exp2_fast(scores[n][i] - reference[n][i]),
                                    exp2_fast(scores[n][2 + i] - reference[n][i]));
            weights[(8 * n + 2 * (lane % 4) + i) * ATTEND_90_WEIGHT_LD + (g >> 1) * 8 + 2 * warp + (g & 1)] =
                ret[n][i];
        }
    }
}

/* Multiplies @n tiles of sums by a factor per row. */
template <class S>
DEVICE void scale_tiles(float (*tiles)[S::ROW_TILES][4], unsigned n_tiles,
                        const float factor[S::ROW_TILES][2])
{
    UNROLL
    for (unsigned x = 0; x < n_tiles; x++) {
        UNROLL
        for (unsigned n = 0; n < S::ROW_TILES; n++) {
            UNROLL
            for (unsigned i = 0; i < 4; i++)
                tiles[x][n][i] *= factor[n][i & 1];
        }
    }
}

/* Raises the reference of each row that these scores demand; ret_factor rescales the sums accumulated under
 * the old reference. */
template <class S>
DEVICE void raise_largest(struct block_90 b, const float scores[S::ROW_TILES][4],
                          float reference[S::ROW_TILES][2], float ret_factor[S::ROW_TILES][2])
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float x = fmaxf(scores[n][i], scores[n][2 + i]);

            for (unsigned across = 4; across < 32; across *= 2)
                x = fmaxf(x, value_across(x, across));
            if (lane < 4)
                b.rows[warp * S::N_ROWS + 8 * n + 2 * lane + i] = x;
        }
    }
    threads_sync(ATTENDING_BARRIER, ATTENDING);
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float before = reference[n][i];

            for (unsigned other = 0; other < ATTENDING_WARPS; other++)
                reference[n][i] =
                    fmaxf(reference[n][i], b.rows[other * S::N_ROWS + 8 * n + 2 * (lane % 4) + i] - BELOW);
            ret_factor[n][i] = exp2_fast(before - reference[n][i]);
        }
    }
}

/* Scores to weights, for all warps to read. @exact: sums of exact values, [n_exact] tiles; they and the
 * sums in @s are rescaled where a reference rises. */
template <class S>
DEVICE void weigh(struct block_90 b, const float scores[S::ROW_TILES][4], struct sums_90<S> *s,
                  float (*exact)[S::ROW_TILES][4], unsigned n_exact, uint32_t *weights)
{
    uint32_t pairs[S::ROW_TILES][2];
    bool beyond = false;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++)
            beyond |= fmaxf(scores[n][i], scores[n][2 + i]) > s->reference[n][i] + RAISE;
    }
    store_weights<S>(s->reference, scores, weights, pairs);
    if (threads_any(ATTENDING_BARRIER, ATTENDING, beyond)) {
        float factor[S::ROW_TILES][2];

        raise_largest<S>(b, scores, s->reference, factor);
        scale_tiles<S>(s->columns, S::VALUE_TILES, factor);
        scale_tiles<S>(exact, n_exact, factor);
        UNROLL
        for (unsigned n = 0; n < S::ROW_TILES; n++)
            for (unsigned i = 0; i < 2; i++)
                s->total[n][i] *= factor[n][i];
        store_weights<S>(s->reference, scores, weights, pairs);
        threads_sync(ATTENDING_BARRIER, ATTENDING);
    }
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++)
            s->total[n][i] +=
                half_to_float((uint16_t) pairs[n][i]) + half_to_float((uint16_t) (pairs[n][i] >> 16));
    }
}

/* ---- values ---- */

/* The part of all weights that a lane needs as operand B: [2 s + h] are tokens 16 s + 2 t + h and 8 more. */
template <class S> DEVICE void load_weights(const uint32_t *weights, uint32_t ret[S::ROW_TILES][8])
{
    unsigned lane = threadIdx.x % 32;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned x = 0; x < 2; x++) {
            struct words4 w =
                words_at(weights + (8 * n + lane / 4) * ATTEND_90_WEIGHT_LD + lane % 4 * 8 + 4 * x);

            UNROLL
            for (unsigned i = 0; i < 4; i++)
                ret[n][4 * x + i] = w.word[i];
        }
    }
}

/* 16 columns times the weights of 64 tokens, for the levels of two half-tiles. @in_order: the pairs of a
 * lane are tokens 2 t, 2 t + 1 of a field, as in exact rows; else they are the same token of two fields. */
template <class S>
DEVICE void add_tile_90(const uint32_t levels[2][8], const uint32_t weights[S::ROW_TILES][8], bool in_order,
                        float c[S::ROW_TILES][4])
{
    UNROLL
    for (unsigned s = 0; s < 4; s++) {
        uint32_t a[4] = {levels[0][2 * s], levels[1][2 * s], levels[0][2 * s + 1], levels[1][2 * s + 1]};

        UNROLL
        for (unsigned n = 0; n < S::ROW_TILES; n++) {
            uint32_t b0 = weights[n][2 * s], b1 = weights[n][2 * s + 1];

            if (in_order)
                mma_16x8x16(c[n], a, pick_bytes(b0, b1, 0x5410), pick_bytes(b0, b1, 0x7632));
            else
                mma_16x8x16(c[n], a, b0, b1);
        }
    }
}

/* 1152 times the weights of 64 tokens: how much levels that are raised by 1152 add to the sums. */
template <class S> DEVICE void sum_raised(const uint32_t weights[S::ROW_TILES][8], float c[S::ROW_TILES][4])
{
    uint32_t levels[2][8];

    UNROLL
    for (unsigned i = 0; i < 8; i++)
        levels[0][i] = levels[1][i] = PLUS_1152_TWICE;
    add_tile_90<S>(levels, weights, false, c);
}

template <class S> DEVICE void lower_tile(const float raised[S::ROW_TILES][4], float c[S::ROW_TILES][4])
{
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            c[n][i] -= raised[n][i];
    }
}

/* The columns of this warp in a page: coordinates of K if V is predicted from them, then those of V. */
template <class S>
DEVICE void add_columns(const struct head_90 *head, struct block_90 b, const uint8_t *codes,
                        const uint32_t *weights, struct sums_90<S> *sums)
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;
    float raised[S::ROW_TILES][4] = {{0}};
    uint32_t w[S::ROW_TILES][8];

    load_weights<S>(weights, w);
    sum_raised<S>(w, raised);
    UNROLL
    for (unsigned x = 0; x < S::VALUE_TILES; x++) {
        uint32_t levels[2][8];

        if (x >= head->n_tiles)
            break;
        if (column_tile(b.levels, codes, tile_at(b.column_tiles + warp * DEVICE_HALVES_MAX, x), lane, levels))
            lower_tile<S>(raised, sums->columns[x]);
        add_tile_90<S>(levels, w, false, sums->columns[x]);
    }
}

/* The dimensions of exact values of this warp, 16 at a time. */
template <class S>
DEVICE void add_exact_values(const struct device_table *t, const struct piece *p, const uint32_t *weights,
                             float (*exact)[S::ROW_TILES][4])
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;
    uint32_t w[S::ROW_TILES][8];

    load_weights<S>(weights, w);
    UNROLL
    for (unsigned x = 0; x < S::EXACT_TILES; x++) {
        uint32_t levels[2][8];

        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            UNROLL
            for (unsigned j = 0; j < 8; j++) {
                uint32_t token = 8 * j + lane / 4,
                         dim = 16 * (warp + x * ATTENDING_WARPS) + 8 * i + 2 * (lane % 4);

                levels[i][j] = transpose_8x8(
                    token < p->n ? *(const uint32_t *) (p->v + (size_t) token * t->d + dim) : 0);
            }
        }
        add_tile_90<S>(levels, w, true, exact[x]);
    }
}
