/*
 * Scores of 64 keys in attend_90.cu. The keys of a page are levels times dec', a product of the warpgroup
 * with binary16 sums. Every lane then has pairs of planes of two tokens, with the first and the second
 * coordinate of a plane in the same lane. So keys are rotated by in-page offsets in registers and are
 * operand A of the scores without being moved. Exact rows are loaded into the same registers.
 */
#pragma once

#include "gpu/cuda/kernels/block_90.h"

/* Constants of a warp: cosines and sines of its 16 tokens, as operand A of a step of planes. */
template <class S> struct rotations {
    uint32_t at[S::ROTATIONS_STAY ? S::STEPS : 1][2][4];
};

/* @residual: 1 loads the rounding residuals of the cosines and sines instead. */
DEVICE struct words4 load_rotation(const struct device_table *t, unsigned residual, unsigned step,
                                   unsigned kind)
{
    unsigned steps = t->n_planes / 16, thread = threadIdx.x % ATTENDING;

    return load_16_bytes(t->rotations + (((residual * steps + step) * 2 + kind) * ATTENDING + thread) * 4);
}

template <class S> DEVICE void load_rotations(const struct device_table *t, struct rotations<S> *ret)
{
    if constexpr (S::ROTATIONS_STAY) {
        UNROLL
        for (unsigned step = 0; step < S::STEPS; step++) {
            UNROLL
            for (unsigned kind = 0; kind < 2; kind++) {
                struct words4 w = load_rotation(t, 0, step, kind);

                UNROLL
                for (unsigned i = 0; i < 4; i++)
                    ret->at[step][kind][i] = w.word[i];
            }
        }
    }
}

template <class S>
DEVICE void get_rotation(const struct device_table *t, const struct rotations<S> *rotations, unsigned step,
                         unsigned kind, uint32_t ret[4])
{
    if constexpr (S::ROTATIONS_STAY) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            ret[i] = rotations->at[step][kind][i];
    } else {
        struct words4 w = load_rotation(t, 0, step, kind);

        UNROLL
        for (unsigned i = 0; i < 4; i++)
            ret[i] = w.word[i];
    }
}

/* ---- keys ---- */

/* Loads the levels of K in the block of a page for the 16 tokens of this warp,
 * operand A of steps of 16 coordinates. */
template <class S>
DEVICE void load_key_levels(const struct head_90 *head, struct block_90 b, const uint8_t *codes,
                            uint32_t levels[S::KEY_STEPS][4])
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;

    UNROLL
    for (unsigned i = 0; i < S::KEY_STEPS; i++) {
        if (i >= head->n_key_steps)
            break;
        key_tile(b.levels, codes, tile_at(b.key_tiles, i), lane, 2 * warp, levels[i]);
    }
}

/* Queues products of @N steps, one after the other into the same sums; without any step the sums are zero. */
template <class S, int N> struct key_steps {
    DEVICE void queue(const uint32_t (&levels)[S::KEY_STEPS][4], uint32_t dec_k,
                      uint32_t (&keys)[S::DIMS / 4])
    {
        key_steps<S, N - 1>::queue(levels, dec_k, keys);
        product(keys, levels[N - 1], describe_blocks(dec_k + (N - 1) * 2 * S::DIMS * 16, S::DIMS * 16, 128),
                N > 1);
    }

    /* Queues the first n <= N steps. */
    DEVICE void queue_some(unsigned n, const uint32_t (&levels)[S::KEY_STEPS][4], uint32_t dec_k,
                           uint32_t (&keys)[S::DIMS / 4])
    {
        if (n == N) {
            products_begin();
            queue(levels, dec_k, keys);
            products_commit();
            products_wait(keys);
        } else {
            key_steps<S, N - 1>::queue_some(n, levels, dec_k, keys);
        }
    }
};

template <class S> struct key_steps<S, 0> {
    DEVICE void queue(const uint32_t (&)[S::KEY_STEPS][4], uint32_t, uint32_t (&)[S::DIMS / 4])
    {
    }

    DEVICE void queue_some(unsigned, const uint32_t (&)[S::KEY_STEPS][4], uint32_t,
                           uint32_t (&keys)[S::DIMS / 4])
    {
        UNROLL
        for (unsigned i = 0; i < S::DIMS / 4; i++)
            keys[i] = 0;
    }
};

#define HALF_TWICE 0x38003800u /* binary16: 1 / 2 */

/* Coordinates @kind of planes @plane and @plane + 1 of one token. */
DEVICE uint32_t exact_pair(const struct device_table *t, const uint16_t *row, uint32_t plane, unsigned kind)
{
    if (plane + 1 < t->n_rot / 2 && t->n_rot % 4 == 0)
        return *(const uint32_t *) (row + plane_dim(t, plane, kind));
    return row[plane_dim(t, plane, kind)] | (uint32_t) row[plane_dim(t, plane + 1, kind)] << 16;
}

/* Loads exact keys into the registers where products of codes leave theirs. The keys are halved, so that
 * none is too large for binary16 after its rotation. */
template <class S>
DEVICE void load_exact_keys(const struct device_table *t, const struct piece *p, uint32_t keys[S::DIMS / 4])
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;

    UNROLL
    for (unsigned tile = 0; tile < S::PLANES / 8; tile++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            uint32_t token = 16 * warp + lane / 4 + 8 * i, plane = 8 * tile + 2 * (lane % 4);
            const uint16_t *row = p->k + (size_t) token * t->d;

            keys[2 * tile + i] = token < p->n ? mul_pairs(exact_pair(t, row, plane, 0), HALF_TWICE) : 0;
            keys[S::PLANES / 4 + 2 * tile + i] =
                token < p->n ? mul_pairs(exact_pair(t, row, plane, 1), HALF_TWICE) : 0;
        }
    }
}

/* ---- scores ---- */

/* Operand B of step @step of a set, for tile @n of rows: k 2t and 2t + 8 of two matrices. */
template <class S>
DEVICE struct words4 query_of(const unsigned char *stage, unsigned set, unsigned step, unsigned n)
{
    return words_at((const uint32_t *) stage + (set * S::STEPS + step) * ATTEND_90_STEP_WORDS(S::ROW_TILES) +
                    n * 128 + threadIdx.x % 32 * 4);
}

template <class S>
DEVICE void add_products(float c[S::ROW_TILES][4], const uint32_t cosine[4], const uint32_t sine[4],
                         const unsigned char *stage, unsigned set, unsigned step)
{
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        struct words4 w = query_of<S>(stage, set, step, n);

        mma_16x8x16(c[n], cosine, w.word[0], w.word[1]);
        mma_16x8x16(c[n], sine, w.word[2], w.word[3]);
    }
}

/* Scores of the key mean, divided by its scale. */
template <class S>
DEVICE void score_mean(const struct device_table *t, const struct head_90 *head,
                       const struct rotations<S> *rotations, const unsigned char *stage,
                       float c[S::ROW_TILES][4])
{
    UNROLL
    for (unsigned step = 0; step < S::STEPS; step++) {
        unsigned how = head->mean_steps >> 2 * step & 3;
        uint32_t cosine[4], sine[4];

        if (how == DEVICE_MEAN_NONE)
            continue;
        get_rotation<S>(t, rotations, step, 0, cosine);
        get_rotation<S>(t, rotations, step, 1, sine);
        add_products<S>(c, cosine, sine, stage, 1, step);
        if (how == DEVICE_MEAN_ROUNDED)
            continue;
        add_products<S>(c, cosine, sine, stage, 2, step);
        add_products<S>(c, load_rotation(t, 1, step, 0).word, load_rotation(t, 1, step, 1).word, stage, 1,
                        step);
    }
}

/* Rotated keys times the queries, in the unit of the keys. */
template <class S>
DEVICE void score_keys(const struct device_table *t, const struct rotations<S> *rotations,
                       const unsigned char *stage, const uint32_t keys[S::DIMS / 4], float c[S::ROW_TILES][4])
{
    UNROLL
    for (unsigned step = 0; step < S::STEPS; step++) {
        uint32_t cosine[4], sine[4], lo[4], hi[4];

        get_rotation<S>(t, rotations, step, 0, cosine);
        get_rotation<S>(t, rotations, step, 1, sine);
        UNROLL
        for (unsigned i = 0; i < 4; i++) {
            uint32_t x = keys[4 * step + i], y = keys[S::PLANES / 4 + 4 * step + i];

            lo[i] = fma_pairs(x, cosine[i], negate_pair(mul_pairs(y, sine[i])));
            hi[i] = fma_pairs(y, cosine[i], mul_pairs(x, sine[i]));
        }
        add_products<S>(c, lo, hi, stage, 0, step);
    }
}
