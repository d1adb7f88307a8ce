/*
 * Attention over packed pages for compute capability 8.0 and later: head dimensions 64, 128 and 256, any widths, up to the ranks
 * of PLAN_80_KERNELS; what these do not take, attend.cu does. One block of four warps takes one (item, tile of queries, KV head,
 * split) and leaves a partial result for kvc_merge.
 *
 * Pages come in pairs of 64 tokens. While one is computed, the blocks of the next two are copied to shared memory. A step:
 *     scores    each warp: levels x dec' of 16 tokens of either page -> keys, turned, x queries (scores_80.h); the key mean's
 *               share; its maxima
 *     barrier; the slot of the pair before is free, copies to it are begun
 *     weights   as bytes to shared memory (weights_80.h); queries turned to the next pair's frames
 *     barrier; the copies of the next pair have arrived
 *     values    each warp its columns: levels x weights (values_80.h)
 * Sinks and the tail are exact and come last, in binary32 (exact.h): sinks with the split that has page 0, the tail with the last
 * one, which gets fewer pages for it.
 */
#include "gpu/cuda/kernels/exact.h"
#include "gpu/cuda/kernels/partial.h"
#include "gpu/cuda/kernels/scores_80.h"
#include "gpu/cuda/kernels/softmax.h"
#include "gpu/cuda/kernels/values_80.h"

/* What a block attends to: pages from, to - 1. */
struct span {
    uint32_t from, to;
    bool has_sinks, has_tail;
};

/* Everything that does not change from pair to pair. */
struct job_80 {
    const struct plan_attend *a;
    const struct plan_table *t;
    const struct plan_seq *seq;
    const struct plan_head *head;
    struct rows rows;
    struct shared_80 s;
    struct span span;
    uint32_t n_pairs;
};

/* Work is divided by pages and what exact rows are worth in pages; pages that no row sees are left out. */
DEVICE struct span span_of(const struct plan_attend *a, const struct plan_seq *seq, const struct rows *rows)
{
    uint32_t all = seq->n_pages + seq->n_exact / PLAN_80_EXACT_ROWS, share = (all + a->n_splits - 1) / a->n_splits;
    uint32_t low, unused, high = (rows->position + (rows->n - 1) / rows->group) / TOKENS + 1;
    struct span x = { blockIdx.y * share, blockIdx.y * share + share, false, blockIdx.y + 1 == a->n_splits };

    if (x.has_tail || x.to > seq->n_pages)
        x.to = seq->n_pages;
    x.has_sinks = x.from == 0 && x.to > 0 && a->table->n_sink > 0;
    visible(a, rows->position, 0, 0xffffffffu, &low, &unused);
    x.to = x.to < high ? x.to : high;
    x.from = x.from > low / TOKENS ? x.from : low / TOKENS;
    return x;
}

/* Tables to shared memory; copies of dec are begun. */
DEVICE void load_tables(const struct job_80 *j)
{
    const struct plan_table *t = j->t;
    struct shared_80 s = j->s;
    uint32_t n_dec = t->n_planes / 8 * (j->head->k.n_half / 2u) * 32; /* of 16 bytes */

    for (uint32_t i = threadIdx.x; i < n_dec; i += PLAN_THREADS)
        copy_begin(s.base + s.at.dec_k + 16 * i, j->head->dec_k_fragments + 4 * i);
    for (uint32_t i = threadIdx.x; i < 3 * 5 * 4; i += PLAN_THREADS)
        ((uint32_t *) (s.base + s.at.narrow))[i] = t->narrow[i];
    for (uint32_t i = threadIdx.x; i < PLAN_80_WIDE_LEVELS; i += PLAN_THREADS)
        ((uint32_t *) (s.base + s.at.wide))[i] = t->wide[i];
    put_tiles(t, j->a->layer, j->head, s);
}

DEVICE uint32_t page_at(const struct job_80 *j, uint32_t pair, unsigned i)
{
    uint32_t page = j->span.from + 2 * pair + i;

    return page < j->span.to ? page : j->span.to - 1; /* behind the last: once more, unseen */
}

/* Copies of a pair's blocks to its slot are begun, as a group; an empty one behind the last. */
DEVICE void fetch(const struct job_80 *j, uint32_t pair)
{
    uint8_t *to = j->s.base + j->s.at.ring + pair % j->s.at.n_stages * 2 * j->s.at.block_bytes;

    if (pair < j->n_pairs)
        for (unsigned page = 0; page < 2; page++) {
            const uint8_t *from = j->seq->payloads[page_at(j, pair, page)] + j->head->block;

            for (uint32_t at = 16 * threadIdx.x; at < j->head->block_bytes; at += 16 * PLAN_THREADS)
                copy_begin(to + page * j->s.at.block_bytes + at, from + at);
        }
    copies_group();
}

/* The next pair has arrived: all groups but those behind it. */
DEVICE void wait_for_next(const struct job_80 *j)
{
    if (j->s.at.n_stages == 2)
        copies_wait<0>();
    else
        copies_wait<PLAN_80_STAGES_MAX - 2>();
}

template <class S> DEVICE void attend_pairs(const struct job_80 *j, struct softmax_80<S> *x,
                                            float c[S::VALUE_TILES][S::ROW_TILES][4])
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct shared_80 s = j->s;
    struct turning_80<S> queries;

    for (uint32_t pair = 0; pair + 1 < s.at.n_stages; pair++)
        fetch(j, pair);
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
        fetch(j, pair + s.at.n_stages - 1);
        weigh<S>(warp, lane, j->t->wide_values, scores, x, s);
        if ((pair + 1) % (TURNS_MAX / 2) == 0)
            begin_queries<S>(j->t, &j->rows, j->span.from + 2 * (pair + 1), &queries);
        put_queries<S>(s, 0, &queries);
        put_queries<S>(s, 1, &queries);
        wait_for_next(j);
        __syncthreads();
        const uint8_t *payloads[2] = { j->seq->payloads[page_at(j, pair, 0)], j->seq->payloads[page_at(j, pair, 1)] };

        add_values<S>(j->t, s, stage, payloads, warp, lane, x, c);
    }
    copies_wait<0>();
    __syncthreads();
}

/* Sums over lanes, warps and both bytes, in units of 1: the state that exact rows go on from. */
template <class S> DEVICE void finish_pairs(const struct job_80 *j, const struct softmax_80<S> *x,
                                            float c[S::VALUE_TILES][S::ROW_TILES][4], struct shared exact)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *sums = (float *) (j->s.base + j->s.at.maxima);

    UNROLL
    for (unsigned tile = 0; tile < S::ROW_TILES; tile++)
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float sum = x->sum[tile][i];

            UNROLL
            for (unsigned across = S::BOTH ? 2 : 4; across <= 16; across *= 2)
                sum += value_across(sum, across);
            if (lane < (S::BOTH ? 2u : 4u)) {
                sums[warp * S::N_ROWS + row_of<S>(lane, tile, i)] = sum;
                if (warp == 0)
                    exact.max[row_of<S>(lane, tile, i)] = x->max[tile][i];
            }
        }
    UNROLL
    for (unsigned v = 0; v < S::VALUE_TILES; v++)
        UNROLL
        for (unsigned tile = 0; tile < S::ROW_TILES; tile++)
            UNROLL
            for (unsigned i = 0; i < 4; i++) {
                float sum = c[v][tile][i];

                if (S::BOTH)
                    sum += value_across(sum, 2); /* upper and lower bytes */
                c[v][tile][i] = sum / WEIGHT_ONE;
            }
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < ROWS; row += PLAN_THREADS) {
        float sum = 0;

        for (unsigned w = 0; w < WARPS && row < S::N_ROWS; w++)
            sum += sums[w * S::N_ROWS + row];
        exact.sum[row] = sum / WEIGHT_ONE;
        if (row >= S::N_ROWS)
            exact.max[row] = LEAST;
    }
    for (uint32_t i = threadIdx.x; i < ROWS * j->t->d; i += PLAN_THREADS)
        exact.exact[i] = 0;
}

/* @n <= 64 exact rows from position @first. */
template <class S> DEVICE void attend_exact(const struct job_80 *j, uint32_t first, uint32_t n, const uint16_t *keys,
                                            const uint16_t *values, float c[S::VALUE_TILES][S::ROW_TILES][4], struct shared s)
{
    unsigned lane = threadIdx.x % 32;

    if (!any_visible(j->a, &j->rows, first, n))
        return;
    turn_queries(j->t, j->head, &j->rows, first, s);
    score_exact(j->t, j->head, keys, n, j->rows.n, s);
    softmax(j->a, &j->rows, first, n, n, s);
    UNROLL
    for (unsigned v = 0; v < S::VALUE_TILES; v++)
        UNROLL
        for (unsigned tile = 0; tile < S::ROW_TILES; tile++)
            UNROLL
            for (unsigned i = 0; i < 4; i++)
                c[v][tile][i] *= s.factor[row_of<S>(lane, tile, i & 1)];
    add_exact(j->t, values, n, j->rows.n, s);
}

template <class S> DEVICE void attend_all_exact(const struct job_80 *j, uint32_t kv_head,
                                                float c[S::VALUE_TILES][S::ROW_TILES][4], struct shared s)
{
    load_queries(j->t, &j->rows, s);
    __syncthreads();
    if (j->span.has_sinks) {
        const uint8_t *payload = j->seq->payloads[0];

        attend_exact<S>(j, 0, j->t->n_sink, (const uint16_t *) (payload + j->head->sinks_k),
                        (const uint16_t *) (payload + j->head->sinks_v), c, s);
    }
    for (uint32_t at = 0; j->span.has_tail && at < j->seq->n_exact; at += TOKENS) {
        uint32_t left = j->seq->n_exact - at;
        size_t row = ((size_t) kv_head * j->seq->exact_ld + j->seq->first_row + at) * j->t->d;

        attend_exact<S>(j, j->seq->n_pages * TOKENS + at, left < TOKENS ? left : (uint32_t) TOKENS, j->seq->exact_k + row,
                        j->seq->exact_v + row, c, s);
    }
    __syncthreads();
}

template <class S> DEVICE void attend_80(const struct plan_attend *a)
{
    const struct plan_table *t = a->table;
    const struct plan_item *item = &a->items[blockIdx.z];
    uint32_t kv_head = blockIdx.x % t->n_kv_heads, tile = blockIdx.x / t->n_kv_heads;
    float c[S::VALUE_TILES][S::ROW_TILES][4] = { { { 0 } } };
    struct softmax_80<S> x;
    struct job_80 j;

    if (tile * PLAN_TILE_QUERIES(t->group) >= item->n_q)
        return;
    j = { a, t, item->seq, t->heads + a->layer * t->n_kv_heads + kv_head, rows_of(t, item, tile, kv_head),
          { dynamic_shared, plan_80_shape(S::DIM, S::N_ROWS, t->key_rank_max, t->columns_max, t->block_bytes_max,
                                          plan_exact_shared_bytes(t->d, t->n_planes)) },
          { 0, 0, false, false }, 0 };
    j.span = span_of(a, j.seq, &j.rows);
    j.n_pairs = j.span.from < j.span.to ? (j.span.to - j.span.from + 1) / 2 : 0;
    struct shared exact = carve(dynamic_shared + j.s.at.exact, t);
    bool any_exact = j.span.has_sinks || (j.span.has_tail && j.seq->n_exact > 0);

    begin_softmax<S>(a, &j.rows, t->n_sink, j.span.to, threadIdx.x % 32, &x);
    if (j.n_pairs > 0) {
        load_tables(&j);
        attend_pairs<S>(&j, &x, c);
    }
    finish_pairs<S>(&j, &x, c, exact);
    __syncthreads();
    if (any_exact)
        attend_all_exact<S>(&j, kv_head, c, exact);
    store_partial<S::VALUE_TILES, S::ROW_TILES>(t, j.rows.n, c, exact.max, exact.sum, any_exact ? exact.exact : NULL,
                                                partials_of(a, blockIdx.z, tile, kv_head) +
                                                    blockIdx.y * PLAN_PARTIAL_FLOATS(t->columns_max, t->d));
}

/* Grid: (KV heads x tiles, splits, items). */
#define ATTEND_80_KERNEL(name, d, n_key_coords, n_columns, n_rows)                              \
    KERNEL void __launch_bounds__(PLAN_THREADS, d < 256 && n_key_coords == 64 && n_rows <= 8 ? 3 : 2) name(PARAMETER struct plan_attend a) \
    {                                                                                           \
        attend_80<size_80<d, n_key_coords, n_columns, n_rows>>(&a);                             \
    }
PLAN_80_KERNELS(ATTEND_80_KERNEL)
