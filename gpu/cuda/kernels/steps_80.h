/* The steps of attend_80.cu, by pairs of pages. */
#pragma once

#include "gpu/cuda/kernels/scores_80.h"
#include "gpu/cuda/kernels/weights_80.h"

/* Pages from .. to - 1 that a block attends to. */
struct span {
    uint32_t from, to;
    bool has_sinks, has_tail;
};

/* Everything that does not change between pairs. */
struct job_80 {
    const struct launch_attend *a;
    const struct device_table *t;
    const struct device_seq *seq;
    const struct device_head *head;
    struct rows rows;
    struct shared_80 s;
    struct span span;
    uint32_t n_pairs;
};

/* Divides the work by pages, where ATTEND_80_EXACT_ROWS exact rows count as one page; leaves out pages that
 * no row sees. */
DEVICE struct span span_of(const struct launch_attend *a, const struct device_seq *seq,
                           const struct rows *rows)
{
    uint32_t all = seq->n_pages + seq->n_exact / ATTEND_80_EXACT_ROWS,
             share = (all + a->n_splits - 1) / a->n_splits;
    uint32_t low, unused, high = (rows->position + (rows->n - 1) / rows->group) / TOKENS + 1;
    struct span x = {blockIdx.y * share, blockIdx.y * share + share, false, blockIdx.y + 1 == a->n_splits};

    if (x.has_tail || x.to > seq->n_pages)
        x.to = seq->n_pages;
    x.has_sinks = x.from == 0 && x.to > 0 && a->table->n_sink > 0;
    visible(a, rows->position, 0, 0xffffffffu, &low, &unused);
    x.to = x.to < high ? x.to : high;
    x.from = x.from > low / TOKENS ? x.from : low / TOKENS;
    return x;
}

/* Writes tables to shared memory and begins to copy dec. */
DEVICE void load_tables(const struct job_80 *j)
{
    const struct device_table *t = j->t;
    struct shared_80 s = j->s;
    uint32_t n_dec = t->n_planes / 8 * (j->head->k.n_half / 2u) * 32; /* of 16 bytes */

    for (uint32_t i = threadIdx.x; i < n_dec; i += LAUNCH_THREADS)
        copy_begin(s.base + s.at.dec_k + 16 * i, j->head->dec_k_fragments + 4 * i);
    for (uint32_t i = threadIdx.x; i < j->head->k.n_half; i += LAUNCH_THREADS)
        ((uint32_t *) (s.base + s.at.halves))[i] = j->head->k.offset[i] | (uint32_t) j->head->k.bits[i] << 24;
    for (uint32_t i = threadIdx.x; i < 3 * 5 * 4; i += LAUNCH_THREADS)
        ((uint32_t *) (s.base + s.at.narrow))[i] = t->narrow[i];
    for (uint32_t i = threadIdx.x; i < ATTEND_80_WIDE_LEVELS; i += LAUNCH_THREADS)
        ((uint32_t *) (s.base + s.at.wide))[i] = t->wide[i];
}

DEVICE uint32_t page_at(const struct job_80 *j, uint32_t pair, unsigned i)
{
    uint32_t page = j->span.from + 2 * pair + i;

    /* behind the last page: the last page again, which no row sees */
    return page < j->span.to ? page : j->span.to - 1;
}

/* Begins to copy the blocks of a pair, and what values need, as one group;
 * behind the last pair the group is empty. */
template <class V> DEVICE void fetch(const struct job_80 *j, uint32_t pair, const V *values)
{
    uint8_t *to = j->s.base + j->s.at.ring + pair % j->s.at.n_stages * 2 * j->s.at.block_bytes;

    if (pair < j->n_pairs)
        for (unsigned page = 0; page < 2; page++) {
            const uint8_t *from = j->seq->payloads[page_at(j, pair, page)] + j->head->block;

            for (uint32_t at = 16 * threadIdx.x; at < j->head->block_bytes; at += 16 * LAUNCH_THREADS)
                copy_begin(to + page * j->s.at.block_bytes + at, from + at);
            values->fetch(j, pair, page);
        }
    copies_group();
}

/* Waits until the next pair has arrived: all groups but those after it. */
DEVICE void wait_for_next(const struct job_80 *j)
{
    if (j->s.at.n_stages == 2)
        copies_wait<0>();
    else
        copies_wait<ATTEND_80_STAGES_MAX - 2>();
}

/*
 * All pairs of a block. @values has
 *     fetch(job, pair, page)   begins more copies for a page
 *     wide(job)                whether it needs weights in binary16 too
 *     add(job, pair, softmax)  adds weights, which are in shared memory, times values to the sums
 */
template <class S, class V>
DEVICE void attend_pairs(const struct job_80 *j, struct softmax_80<S> *x, V *values)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct shared_80 s = j->s;
    struct rotation_80<S> queries;

    for (uint32_t pair = 0; pair + 1 < s.at.n_stages; pair++)
        fetch(j, pair, values);
    init_queries<S>(j->t, j->head, &queries);
    begin_queries<S>(j->t, &j->rows, j->span.from, &queries);
    put_queries<S>(s, 0, &queries);
    put_queries<S>(s, 1, &queries);
    wait_for_next(j);
    __syncthreads();
    for (uint32_t pair = 0; pair < j->n_pairs; pair++) {
        const uint8_t *stage = s.base + s.at.ring + pair % s.at.n_stages * 2 * s.at.block_bytes;
        float scores[S::SETS][4];

        score_pair<S>(j->t, j->head, stage, s, warp, lane, scores);
        find_maxima<S>((j->span.from + 2 * pair) * TOKENS, warp, lane, x, scores, s);
        __syncthreads();
        fetch(j, pair + s.at.n_stages - 1, values);
        weigh<S>(warp, lane, values->wide(j), scores, x, s);
        if ((pair + 1) % (ROTATIONS_MAX / 2) == 0)
            begin_queries<S>(j->t, &j->rows, j->span.from + 2 * (pair + 1), &queries);
        put_queries<S>(s, 0, &queries);
        put_queries<S>(s, 1, &queries);
        wait_for_next(j);
        __syncthreads();
        values->add(j, pair, x);
    }
    copies_wait<0>();
    __syncthreads();
}

/* Maxima and sums of weights of all rows of this block, in units of 1; after the last pair. */
template <class S>
DEVICE void finish_softmax(const struct job_80 *j, const struct softmax_80<S> *x, float *ret_max,
                           float *ret_sum)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *sums = (float *) (j->s.base + j->s.at.maxima);

    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float sum = x->sum[tile][i];

            UNROLL
            for (unsigned across = S::BOTH ? 2 : 4; across <= 16; across *= 2)
                sum += value_across(sum, across);
            if (lane < (S::BOTH ? 2u : 4u)) {
                sums[warp * S::N_ROWS + row_of<S>(lane, tile, i)] = sum;
                if (warp == 0)
                    ret_max[row_of<S>(lane, tile, i)] = x->max[tile][i];
            }
        }
    }
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < ROWS; row += LAUNCH_THREADS) {
        float sum = 0;

        for (unsigned w = 0; w < WARPS && row < S::N_ROWS; w++)
            sum += sums[w * S::N_ROWS + row];
        ret_sum[row] = sum / WEIGHT_ONE;
        if (row >= S::N_ROWS)
            ret_max[row] = LEAST;
    }
}
