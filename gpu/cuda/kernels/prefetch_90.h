/* The warps of attend_90.cu that work in advance: one fetches the blocks of pages, the others rotate the
 * queries to the frames of the next pieces. */
#pragma once

#include "gpu/cuda/kernels/block_90.h"

/* Pages after which a phase is computed anew: its error is at most 2^-20 of a revolution. */
enum { PHASE_ROUNDS = 16 };

/* One warp: fetches the block of this head of every page, as soon as a stage is free. Lanes hold the
 * addresses of 32 pages. */
DEVICE void fetch(const struct work *w, struct block_90 b)
{
    struct stage s = {b.shape.n_stages, 0, 1};
    uint32_t lane = threadIdx.x % 32, bytes = w->head->block_bytes;
    uint64_t payload = 0;

    for (uint32_t i = 0; i < w->n_pages; i++) {
        const uint8_t *from;

        if (i % 32 == 0)
            payload = i + lane < w->n_pages ? (uint64_t) (uintptr_t) w->seq->payloads[w->page + i + lane] : 0;
        from = (const uint8_t *) (uintptr_t) value_of_lane(payload, i % 32) + w->head->block;
        if (lane == 0) {
            barrier_wait(&b.empty[s.at], s.parity);
            barrier_expect(&b.full[s.at], bytes);
            if (bytes > 0)
                bulk_copy(b.ring + s.at * b.shape.stage_bytes, from, bytes, &b.full[s.at]);
        }
        next_stage(&s);
    }
}

/* ---- queries ---- */

/* A pair of planes of a lane: the phase of the current piece, the rotation back to the next page of this
 * warp, and the mean divided by its scale. */
struct plane_pair {
    float cosine[2], sine[2], step_cosine[2], step_sine[2], mean_lo[2], mean_hi[2];
    unsigned how; /* DEVICE_MEAN_* */
};

DEVICE void begin_pair(const struct work *w, uint32_t plane, uint32_t n_pages, struct plane_pair *p)
{
    float scale = 1 / w->head->mean_scale;

    p->how = w->head->mean_steps >> plane / 16 * 2 & 3;
    for (unsigned x = 0; x < 2; x++) {
        phase_of(w->table, plane + x, n_pages * TOKENS, &p->step_cosine[x], &p->step_sine[x]);
        p->mean_lo[x] = w->head->mean_k[plane + x] * scale;
        p->mean_hi[x] = w->head->mean_k[w->table->n_planes + plane + x] * scale;
    }
}

DEVICE void rotate_pair(const struct work *w, uint32_t plane, uint32_t first, bool anew, struct plane_pair *p)
{
    for (unsigned x = 0; x < 2; x++) {
        float c = p->cosine[x], s = p->sine[x];

        if (anew) {
            phase_of(w->table, plane + x, (double) w->rows.position - (double) first, &p->cosine[x],
                     &p->sine[x]);
        } else {
            p->cosine[x] = c * p->step_cosine[x] + s * p->step_sine[x];
            p->sine[x] = s * p->step_cosine[x] - c * p->step_sine[x];
        }
    }
}

/* The address of the pair of planes @plane of @row in the first set of a stage; the word of the
 * second plane is 2 words later. */
template <class S> DEVICE uint32_t *query_word(unsigned char *stage, uint32_t plane, uint32_t row)
{
    uint32_t in_lane = plane % 16 / 8, lane = plane % 8 / 2; /* of row 0; a row has four lanes */

    return (uint32_t *) stage + plane / 16 * ATTEND_90_STEP_WORDS(S::ROW_TILES) + (4 * row + lane) * 4 +
           in_lane;
}

/* Stores @x as a pair of binary16; if @residual is set, also the rounding residuals. */
DEVICE void store_rounded(const float x[2], uint32_t *at, uint32_t *residual)
{
    uint32_t pair = pack_halves(x[0], x[1]);

    *at = pair;
    if (residual)
        *residual =
            pack_halves(x[0] - half_to_float((uint16_t) pair), x[1] - half_to_float((uint16_t) (pair >> 16)));
}

/* One row of one pair of planes, to the three sets of @stage. */
template <class S>
DEVICE void rotate_row(const float *start, const struct plane_pair *p, uint32_t plane, uint32_t row,
                       unsigned char *stage)
{
    const uint32_t set = S::STEPS * ATTEND_90_STEP_WORDS(S::ROW_TILES);
    uint32_t *q = query_word<S>(stage, plane, row), *terms = q + set, *residual = terms + set;
    float lo[2], hi[2], with_cosine[2], with_sine[2];

    for (unsigned x = 0; x < 2; x++) {
        float from_lo = start[row * S::DIMS + plane + x],
              from_hi = start[row * S::DIMS + S::PLANES + plane + x];

        lo[x] = from_lo * p->cosine[x] - from_hi * p->sine[x];
        hi[x] = from_hi * p->cosine[x] + from_lo * p->sine[x];
        with_cosine[x] = lo[x] * p->mean_lo[x] + hi[x] * p->mean_hi[x];
        with_sine[x] = hi[x] * p->mean_lo[x] - lo[x] * p->mean_hi[x];
    }
    store_rounded(lo, q, 0);
    store_rounded(hi, q + 2, 0);
    if (p->how == DEVICE_MEAN_NONE)
        return;
    store_rounded(with_cosine, terms, p->how == DEVICE_MEAN_EXACT ? residual : 0);
    store_rounded(with_sine, terms + 2, p->how == DEVICE_MEAN_EXACT ? residual + 2 : 0);
}

/* One of the warps that rotate. It takes every piece whose number is its own, and writes it to its own
 * stage, so that the cost of a piece that does not depend on rows is paid by one warp. A lane always has
 * the same planes. */
template <class S> DEVICE void rotate(const struct work *w, struct block_90 b, unsigned warp)
{
    enum {
        LANES = S::PLANES / 2 < 32 ? S::PLANES / 2 : 32,
        AT_ONCE = 32 / LANES,
        PAIRS = S::PLANES / 2 / LANES
    };
    unsigned char *stage = b.queries + warp * b.shape.query_bytes;
    uint32_t lane = threadIdx.x % 32, plane = lane % LANES * 2, parity = 1;
    struct plane_pair pairs[PAIRS];

    if (warp >= S::QUERY_STAGES)
        return;
    UNROLL
    for (unsigned x = 0; x < PAIRS; x++)
        begin_pair(w, plane + 2 * LANES * x, S::QUERY_STAGES, &pairs[x]);
    for (uint32_t i = warp, round = 0; i < w->n; i += S::QUERY_STAGES, round++, parity ^= 1) {
        struct piece p = piece_of(w, i);
        bool anew = p.exact || round % PHASE_ROUNDS == 0;

        UNROLL
        for (unsigned x = 0; x < PAIRS; x++)
            rotate_pair(w, plane + 2 * LANES * x, p.first, anew, &pairs[x]);
        barrier_wait(&b.query_empty[warp], parity);
        for (uint32_t row = lane / LANES; row < w->rows.n; row += AT_ONCE) {
            UNROLL
            for (unsigned x = 0; x < PAIRS; x++)
                rotate_row<S>(b.start, &pairs[x], plane + 2 * LANES * x, row, stage);
        }
        arrive_by_warp(&b.query_full[warp]);
    }
}
