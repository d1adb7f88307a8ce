/*
 * Softmax of attend_80.cu, base 2, over the 128 tokens of a pair of pages. A weight is a whole multiple of
 * 1 / 65535 of the largest weight of its row in the pair. Its two bytes are two columns of a product of
 * bytes, so sums of values are exact until they are added to those of earlier pages. The rounded weights
 * are summed, so that they agree with their sum.
 */
#pragma once

#include "gpu/cuda/kernels/block_80.h"

#define WEIGHT_ONE 65535.0f
#define WHOLE 8388608.0f /* 2^23: adding it leaves the weight, rounded, in the lowest bits */

/* For the rows of this lane: positions that they see, and the softmax so far. */
template <class S> struct softmax_80 {
    uint32_t first[S::ROW_TILES][2], last[S::ROW_TILES][2];
    float max[S::ROW_TILES][2],
        sum[S::ROW_TILES][2]; /* sum of the weights of this lane's tokens, as whole numbers */
    float keep[S::ROW_TILES][2],
        add[S::ROW_TILES][2]; /* factors of the earlier sums and of the sums of this pair of pages */
};

/* Packed keys that rows see begin behind @n_sink and end before page @end. */
template <class S>
DEVICE void begin_softmax(const struct launch_attend *a, const struct rows *rows, uint32_t n_sink,
                          uint32_t end, unsigned lane, struct softmax_80<S> *x)
{
    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            uint32_t row = row_of<S>(lane, tile, i), position = rows->position + row / rows->group, from, to;

            visible(a, position, 0, end * TOKENS, &from, &to);
            from = from > n_sink ? from : n_sink;
            x->first[tile][i] = row < rows->n ? from : 1;
            x->last[tile][i] = row < rows->n && to > 0 ? to - 1 : 0;
            if (to == 0)
                x->first[tile][i] = 1; /* sees no key */
            x->max[tile][i] = LEAST;
            x->sum[tile][i] = 0;
        }
    }
}

/* Token of a page that element @i of a fragment of scores belongs to. */
DEVICE unsigned token_of(unsigned warp, unsigned lane, unsigned i)
{
    return 16 * warp + (lane >> 2) + (i >> 1) * 8;
}

/* Sets scores that are not seen to LEAST and writes the largest score of each
 * row in this warp to shared memory. */
template <class S>
DEVICE void find_maxima(uint32_t first_token, unsigned warp, unsigned lane, const struct softmax_80<S> *x,
                        float c[S::SETS][4], struct shared_80 s)
{
    float *maxima = (float *) (s.base + s.at.maxima) + warp * S::N_ROWS;
    float largest[S::ROW_TILES][2];

    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++)
        largest[tile][0] = largest[tile][1] = LEAST;
    UNROLL
    for (unsigned set = 0; set < S::SETS; set++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            unsigned tile = set % S::ROW_TILES;
            uint32_t position = first_token + page_of<S>(lane, set) * TOKENS + token_of(warp, lane, i);

            if (position < x->first[tile][i & 1] || position > x->last[tile][i & 1])
                c[set][i] = 2 * LEAST;
            largest[tile][i & 1] = fmaxf(largest[tile][i & 1], c[set][i]);
        }
    }
    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float m = largest[tile][i];

            UNROLL
            for (unsigned across = S::BOTH ? 2 : 4; across <= 16; across *= 2)
                m = fmaxf(m, value_across(m, across));
            if (lane < (S::BOTH ? 2u : 4u))
                maxima[row_of<S>(lane, tile, i)] = m;
        }
    }
}

/* The weights of two tokens of a row: whole numbers above 2^23, as two bytes each. */
template <class S>
DEVICE void put_weights(struct shared_80 s, unsigned warp, unsigned lane, unsigned set, unsigned i, float x,
                        float y)
{
    uint32_t bytes = pick_bytes(bits_of_float(x), bits_of_float(y), 0x5140); /* lower bytes, upper bytes */
    unsigned row = row_of<S>(lane, set, i), page = page_of<S>(lane, set), tt = lane >> 3, h = lane >> 2 & 1;
    unsigned upper = S::BOTH ? 0 : 2 * (row / 8), lower = S::BOTH ? 0 : upper + 1, n = row % 8,
             n_lower = S::BOTH ? row + 4 : n;
    unsigned word = 2 * (warp >> 1) + h, half = warp & 1; /* tokens 8 (2 w) and 8 (2 w + 1) are neighbours */

    ((uint16_t *) &weight_words<S>(s, page, upper, n, tt)[word])[half] = (uint16_t) (bytes >> 16);
    ((uint16_t *) &weight_words<S>(s, page, lower, n_lower, tt)[word])[half] = (uint16_t) bytes;
}

/* Scores to weights, after the maxima of all warps; @wide: in binary16 too, for wide levels. Earlier sums
 * must be multiplied by keep, the sums of these weights by add. */
template <class S>
DEVICE void weigh(unsigned warp, unsigned lane, bool wide, const float c[S::SETS][4], struct softmax_80<S> *x,
                  struct shared_80 s)
{
    const float *maxima = (const float *) (s.base + s.at.maxima);
    uint16_t *halves = (uint16_t *) (s.base + s.at.weights16);
    float here[S::ROW_TILES][2], sum[S::ROW_TILES][2];

    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            const float *of_row = maxima + row_of<S>(lane, tile, i);
            float before = x->max[tile][i], m = of_row[0];

            UNROLL
            for (unsigned w = 1; w < WARPS; w++)
                m = fmaxf(m, of_row[w * S::N_ROWS]);
            here[tile][i] = m;
            x->max[tile][i] = fmaxf(before, m);
            x->keep[tile][i] = exp2_fast(before - x->max[tile][i]);
            x->add[tile][i] = exp2_fast(m - x->max[tile][i]);
            sum[tile][i] = 0;
        }
    }
    UNROLL
    for (unsigned set = 0; set < S::SETS; set++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            unsigned tile = set % S::ROW_TILES;
            float w[2], whole[2];

            UNROLL
            for (unsigned y = 0; y < 2; y++) {
                w[y] = exp2_fast(c[set][2 * y + i] -
                                 here[tile][i]); /* 0 where not seen: 2 LEAST is far below any maximum */
                whole[y] = w[y] * WEIGHT_ONE + WHOLE;
                sum[tile][i] += whole[y] - WHOLE;
            }
            put_weights<S>(s, warp, lane, set, i, whole[0], whole[1]);
            if (wide) {
                uint16_t *row = halves + (page_of<S>(lane, set) * S::N_ROWS + row_of<S>(lane, set, i)) *
                                             ATTEND_80_WEIGHT_LD;
                uint32_t pair = pack_halves(w[0], w[1]);

                row[token_of(warp, lane, 0)] = (uint16_t) pair;
                row[token_of(warp, lane, 2)] = (uint16_t) (pair >> 16);
            }
        }
    }
    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++)
            x->sum[tile][i] = x->sum[tile][i] * x->keep[tile][i] + sum[tile][i] * x->add[tile][i];
    }
}
