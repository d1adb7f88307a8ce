/*
 * Queries and scores of attend_80.cu: rotates queries from page to page, decodes keys, computes their
 * scores and the part of the key mean.
 *
 * Angles are loaded where they are needed: keeping them in registers for all planes would cost a third of
 * the blocks that run at once.
 *
 * The part of the key mean in a score, with the angles of the token's offset in its page:
 *
 *     sum over planes of (q_lo m_lo + q_hi m_hi) cos + (q_hi m_lo - q_lo m_hi) sin
 *
 * A mean may have norm 900, so one rounding to binary16 is too coarse. Both factors are split into a
 * binary16 number and its rounding residual, and of the four products the three that matter are computed,
 * with binary32 sums. Only the first product is computed where the host found the mean no larger than what
 * codes add to it, and none where the mean is zero. Means are divided by a power of two, so that factors
 * are about as large as queries.
 */
#pragma once

#include "gpu/cuda/kernels/block_80.h"

/* ---- queries ---- */

/* Pairs of planes of some rows, in the frame of the next page to be stored: rows first_row + i row_step,
 * planes p and p + 1. */
template <class S> struct rotation_80 {
    float lo[S::ITEMS][2], hi[S::ITEMS][2];
    float cosine[2], sine[2]; /* of the rotation by one page */
    float mean_lo[2], mean_hi[2];
    uint32_t plane;
};

enum {
    ROTATIONS_MAX = 128
}; /* pages after which queries are computed anew: one rotation errs by 2^-25 of a radian */

template <class S> DEVICE unsigned row_of_item(unsigned item)
{
    return threadIdx.x / S::PAIRS + item * (LAUNCH_THREADS / S::PAIRS);
}

/* Computes the queries in the frame of page @page. Rows that do not exist are zero. */
template <class S>
DEVICE void begin_queries(const struct device_table *t, const struct rows *rows, uint32_t page,
                          struct rotation_80<S> *q)
{
    float scale = t->attn_scale * LOG2_E;

    UNROLL
    for (unsigned item = 0; item < S::ITEMS; item++) {
        unsigned row = row_of_item<S>(item);

        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float lo = 0, hi = 0, c, sn;

            if (row < rows->n) {
                const float *from = rows->q + row / rows->group * rows->stride + row % rows->group * t->d;

                lo = from[plane_dim(t, q->plane + i, 0)] * scale;
                hi = from[plane_dim(t, q->plane + i, 1)] * scale;
                phase_of(t, q->plane + i,
                         (double) (rows->position + row / rows->group) - (double) page * TOKENS, &c, &sn);
                q->lo[item][i] = lo * c - hi * sn;
                q->hi[item][i] = hi * c + lo * sn;
            } else {
                q->lo[item][i] = q->hi[item][i] = 0;
            }
        }
    }
}

template <class S>
DEVICE void init_queries(const struct device_table *t, const struct device_head *head,
                         struct rotation_80<S> *q)
{
    q->plane = 2 * (threadIdx.x % S::PAIRS);
    UNROLL
    for (unsigned i = 0; i < 2; i++) {
        q->cosine[i] = t->page_rotation[2 * (q->plane + i)];
        q->sine[i] = t->page_rotation[2 * (q->plane + i) + 1];
        q->mean_lo[i] = head->mean_k[q->plane + i] / head->mean_scale;
        q->mean_hi[i] = head->mean_k[t->n_planes + q->plane + i] / head->mean_scale;
    }
}

/* Rounds two numbers to a pair of binary16, and their rounding residuals to another. */
DEVICE void split_pair(float x, float y, uint32_t *ret_pair, uint32_t *ret_rest)
{
    uint32_t pair = pack_halves(x, y);

    *ret_pair = pair;
    *ret_rest = pack_halves(x - half_to_float((uint16_t) pair), y - half_to_float((uint16_t) (pair >> 16)));
}

/* Stores the queries in the frame of page @page (0, 1) of a pair as operands B,
 * then rotates them to the next page. */
template <class S> DEVICE void put_queries(struct shared_80 s, unsigned page, struct rotation_80<S> *q)
{
    UNROLL
    for (unsigned item = 0; item < S::ITEMS; item++) {
        unsigned row = row_of_item<S>(item), set = S::BOTH ? 0 : page * S::ROW_TILES + row / 8;
        unsigned n = S::BOTH ? 4 * page + row : row % 8, at = q->plane % 16 / 8,
                 lane = 4 * n + q->plane % 8 / 2;
        const float *lo = q->lo[item], *hi = q->hi[item];
        float c[2], sn[2];

        if (row >= S::N_ROWS)
            continue; /* of a small head dimension */
        uint32_t *queries = query_words<S>(s, 0, set, q->plane / 16, lane) + at;
        uint32_t *factors = query_words<S>(s, 1, set, q->plane / 16, lane) + at;
        uint32_t *residuals = query_words<S>(s, 2, set, q->plane / 16, lane) + at;

        queries[0] = pack_halves(lo[0], lo[1]);
        queries[2] = pack_halves(hi[0], hi[1]);
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            c[i] = lo[i] * q->mean_lo[i] + hi[i] * q->mean_hi[i];
            sn[i] = hi[i] * q->mean_lo[i] - lo[i] * q->mean_hi[i];
        }
        split_pair(c[0], c[1], &factors[0], &residuals[0]);
        split_pair(sn[0], sn[1], &factors[2], &residuals[2]);
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float x = lo[i], y = hi[i];

            q->lo[item][i] = x * q->cosine[i] + y * q->sine[i];
            q->hi[item][i] = y * q->cosine[i] - x * q->sine[i];
        }
    }
}

/* ---- keys ---- */

/* Cosines and sines of the tokens of this warp and 16 planes as operands A;
 * @residual: their rounding residuals. */
struct angles_80 {
    struct words4 cosine, sine;
};

DEVICE struct angles_80 angles_of(const struct device_table *t, unsigned residual, unsigned warp,
                                  unsigned step, unsigned lane)
{
    const uint32_t *at =
        t->rotations + ((residual * (t->n_planes / 16) + step) * 2 * LAUNCH_THREADS + 32 * warp + lane) * 4;

    return {load_16_bytes(at), load_16_bytes(at + 4 * LAUNCH_THREADS)};
}

/* Levels of a half-tile of K for the tokens of this warp: columns 2t, 2t + 1 of tokens 16 w + g, then of 16
 * w + 8 + g. */
DEVICE void key_levels(struct shared_80 s, const uint8_t *at, unsigned b, unsigned warp, unsigned lane,
                       uint32_t *ret_first, uint32_t *ret_second)
{
    uint32_t which = warp & 1 ? 0x4431 : 0x4420, levels; /* fields 2w, 2w + 1 of their word */

    if (b > NARROW_BITS) {
        *ret_first = wide_pair(wide_table(s, 0), b, code_pair(at, b, lane, 2 * warp));
        *ret_second = wide_pair(wide_table(s, 0), b, code_pair(at, b, lane, 2 * warp + 1));
        return;
    }
    if (b == NARROW_BITS) { /* the common case, without further branches */
        levels = narrow_levels(narrow_table(s, 0, b), NARROW_BITS,
                               pick_bytes(nibbles_of(at, NARROW_BITS, lane, warp >> 1), 0, which));
    } else if (b > 0) {
        levels = narrow_levels(narrow_table(s, 0, b), NARROW_BITS - 1,
                               pick_bytes(nibbles_of(at, b, lane, warp >> 1), 0, which));
    } else {
        *ret_first = *ret_second = 0;
        return;
    }
    *ret_first = pair_of_bytes(levels, 0x4240);
    *ret_second = pair_of_bytes(levels, 0x4341);
}

/* Levels of all half-tiles of K of a page, as operands A. They pass through shared memory, in a part that
 * only the lane uses, so that the code of the lookup exists once and not for each half-tile that a kernel
 * has registers for. */
template <class S>
DEVICE void load_levels(const uint8_t *block, unsigned n_half, struct shared_80 s, unsigned warp,
                        unsigned lane, uint32_t ret[S::KEY_STEPS][4])
{
    const uint32_t *halves = (const uint32_t *) (s.base + s.at.halves);
    unsigned n_steps = n_half / 2,
             of_warp = n_steps < ATTEND_80_LEVEL_STEPS ? n_steps : (unsigned) ATTEND_80_LEVEL_STEPS;
    uint32_t *own = (uint32_t *) (s.base + s.at.levels) + (warp * of_warp * 32 + lane) * 4;

    UNROLL
    for (unsigned first = 0; first < S::KEY_STEPS; first += ATTEND_80_LEVEL_STEPS) {
        NOT_UNROLLED
        for (unsigned half = 2 * first; half < n_half && half < 2 * (first + ATTEND_80_LEVEL_STEPS); half++) {
            uint32_t *to = own + (half / 2 - first) * 128 + half % 2 * 2;

            key_levels(s, block + (halves[half] & 0xffffff), halves[half] >> 24, warp, lane, &to[0], &to[1]);
        }
        UNROLL
        for (unsigned i = 0; i < ATTEND_80_LEVEL_STEPS; i++) {
            if (first + i >= n_steps)
                break;
            struct words4 w = words_at(own + 128 * i);

            UNROLL
            for (unsigned x = 0; x < 4; x++)
                ret[first + i][x] = w.word[x];
        }
    }
}

/* Keys of 16 planes and both pages, rotated by their offsets in the page, as operands A: of the first
 * dimensions of the planes, then of the second ones. */
template <class S>
DEVICE void keys_of_planes(const uint32_t *dec, unsigned n_steps, unsigned step,
                           const uint32_t (&levels)[2][S::KEY_STEPS][4], struct angles_80 angles,
                           unsigned lane, uint32_t lo[2][4], uint32_t hi[2][4])
{
    UNROLL
    for (unsigned n = 0; n < 2; n++) {
        float x[2][4] = {{0}}, y[2][4] = {{0}};

        UNROLL
        for (unsigned i = 0; i < S::KEY_STEPS; i++) {
            if (i >= n_steps)
                break;
            struct words4 b = words_at(dec + (((2 * step + n) * n_steps + i) * 32 + lane) * 4);

            UNROLL
            for (unsigned page = 0; page < 2; page++) {
                mma_16x8x16(x[page], levels[page][i], b.word[0], b.word[1]);
                mma_16x8x16(y[page], levels[page][i], b.word[2], b.word[3]);
            }
        }
        UNROLL
        for (unsigned page = 0; page < 2; page++) {
            UNROLL
            for (unsigned i = 0; i < 2; i++) {
                uint32_t c = angles.cosine.word[2 * n + i], sn = angles.sine.word[2 * n + i];
                uint32_t a = pack_halves(x[page][2 * i], x[page][2 * i + 1]),
                         b = pack_halves(y[page][2 * i], y[page][2 * i + 1]);

                lo[page][2 * n + i] = fma_pairs(a, c, negate_pair(mul_pairs(b, sn)));
                hi[page][2 * n + i] = fma_pairs(b, c, mul_pairs(a, sn));
            }
        }
    }
}

/* Scores of codes of 16 planes, divided by head->dec_k_scale. */
template <class S>
DEVICE void score_codes(const uint32_t *dec, unsigned n_steps, unsigned step,
                        const uint32_t (&levels)[2][S::KEY_STEPS][4], struct angles_80 angles, unsigned lane,
                        struct shared_80 s, float c[S::SETS][4])
{
    uint32_t lo[2][4], hi[2][4];

    keys_of_planes<S>(dec, n_steps, step, levels, angles, lane, lo, hi);
    UNROLL
    for (unsigned page = 0; page < 2; page++) {
        UNROLL
        for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
            unsigned set = S::BOTH ? 0 : page * S::ROW_TILES + tile;
            struct words4 q = words_at(query_words<S>(s, 0, set, step, lane));
            bool mine = !S::BOTH || lane >> 4 == page; /* columns of this page */

            mma_16x8x16(c[set], lo[page], mine ? q.word[0] : 0, mine ? q.word[1] : 0);
            mma_16x8x16(c[set], hi[page], mine ? q.word[2] : 0, mine ? q.word[3] : 0);
        }
    }
}

/* Scores of the key mean of 16 planes, divided by head->mean_scale, as exactly as
 * head->mean_steps demands (DEVICE_MEAN_*). */
template <class S>
DEVICE void score_mean(const struct device_table *t, const struct device_head *head, unsigned step,
                       struct angles_80 angles, unsigned warp, unsigned lane, struct shared_80 s,
                       float c[S::SETS][4])
{
    uint32_t how = head->mean_steps >> 2 * step & 3;
    struct angles_80 residual;

    if (how == DEVICE_MEAN_NONE)
        return;
    UNROLL
    for (unsigned set = 0; set < S::SETS; set++) {
        struct words4 factor = words_at(query_words<S>(s, 1, set, step, lane));

        mma_16x8x16(c[set], angles.cosine.word, factor.word[0], factor.word[1]);
        mma_16x8x16(c[set], angles.sine.word, factor.word[2], factor.word[3]);
    }
    if (how == DEVICE_MEAN_ROUNDED)
        return;
    residual = angles_of(t, 1, warp, step, lane);
    UNROLL
    for (unsigned set = 0; set < S::SETS; set++) {
        struct words4 factor = words_at(query_words<S>(s, 1, set, step, lane));
        struct words4 factor_residual = words_at(query_words<S>(s, 2, set, step, lane));

        mma_16x8x16(c[set], angles.cosine.word, factor_residual.word[0], factor_residual.word[1]);
        mma_16x8x16(c[set], angles.sine.word, factor_residual.word[2], factor_residual.word[3]);
        mma_16x8x16(c[set], residual.cosine.word, factor.word[0], factor.word[1]);
        mma_16x8x16(c[set], residual.sine.word, factor.word[2], factor.word[3]);
    }
}

/* Scores of the tokens of this warp in a pair of pages. */
template <class S>
DEVICE void score_pair(const struct device_table *t, const struct device_head *head, const uint8_t *blocks,
                       struct shared_80 s, unsigned warp, unsigned lane, float ret[S::SETS][4])
{
    const uint32_t *dec = (const uint32_t *) (s.base + s.at.dec_k);
    float mean[S::SETS][4] = {{0}}, c[S::SETS][4] = {{0}};
    uint32_t levels[2][S::KEY_STEPS][4];

    UNROLL
    for (unsigned page = 0; page < 2; page++)
        load_levels<S>(blocks + page * s.at.block_bytes, head->k.n_half, s, warp, lane, levels[page]);
    NOT_UNROLLED
    for (unsigned step = 0; step < S::STEPS; step++) {
        struct angles_80 angles = angles_of(t, 0, warp, step, lane);

        if (head->k.n_half > 0)
            score_codes<S>(dec, head->k.n_half / 2, step, levels, angles, lane, s, c);
        score_mean<S>(t, head, step, angles, warp, lane, s, mean);
    }
    UNROLL
    for (unsigned set = 0; set < S::SETS; set++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            ret[set][i] = c[set][i] * head->dec_k_scale + mean[set][i] * head->mean_scale;
    }
}
