/*
 * Attention over packed pages for compute capability 8.0 and later: head dimensions 64, 128 and 256, any
 * widths, up to the ranks of ATTEND_80_KERNELS; attend.cu takes everything else. One block of four warps
 * takes one (item, tile of queries, KV head, split) and leaves a partial result for kvc_merge.
 *
 * Pages are processed in pairs of 64 tokens. While one pair is computed, the blocks of the next two pairs are
 * copied to shared memory. The steps of one pair:
 *
 *     scores     each warp: levels x dec' of 16 tokens of either page -> keys, rotated, x queries; the part
 *                of the key mean; the maxima of the warp                                       scores_80.h
 *     barrier    the slot of the pair before is free; copies to it begin
 *     weights    as bytes to shared memory; queries are rotated to the frames of the next pair
 *                                                                                              weights_80.h
 *     barrier    the copies of the next pair have arrived
 *     values     each warp its columns: levels x weights                                       values_80.h
 *
 * Sinks and the tail are exact and come last, in binary32 (exact.h): sinks with the split that has page 0,
 * the tail with the last split, which gets fewer pages for it.
 */
#include "gpu/cuda/kernels/exact.h"
#include "gpu/cuda/kernels/softmax.h"
#include "gpu/cuda/kernels/steps_80.h"
#include "gpu/cuda/kernels/values_80.h"

/* Values that are decoded from codes. */
template <class S> struct packed_values {
    DEVICE_MEMBER bool wide(const struct job_80 *j) const
    {
        return j->t->wide_values;
    }

    DEVICE_MEMBER void fetch(const struct job_80 *, uint32_t, unsigned) const
    {
    }

    DEVICE_MEMBER void add(const struct job_80 *j, uint32_t pair, const struct softmax_80<S> *x)
    {
        const uint8_t *payloads[2] = {j->seq->payloads[page_at(j, pair, 0)],
                                      j->seq->payloads[page_at(j, pair, 1)]};
        const uint8_t *stage = j->s.base + j->s.at.ring + pair % j->s.at.n_stages * 2 * j->s.at.block_bytes;

        add_values<S>(j->t, j->s, stage, payloads, threadIdx.x / 32, threadIdx.x % 32, x);
    }
};

/* Calls @change(sum, tile of columns, tile of rows, element) for all sums of this thread. */
template <class S, class F> DEVICE void for_sums(const struct job_80 *j, F change)
{
    unsigned lane = threadIdx.x % 32;

    NOT_UNROLLED
    for (uint32_t i = threadIdx.x / 32; i < j->t->columns_max / 16; i += WARPS) {
        UNROLL
        for (unsigned tile = 0; tile < S::ROW_TILES; tile++) {
            UNROLL
            for (unsigned y = 0; y < 4; y++)
                change(&sums_at<S>(j->s, i, tile, lane)[y], i, tile, y);
        }
    }
}

/* Attends to @n <= 64 exact rows from position @first. */
template <class S>
DEVICE void attend_exact(const struct job_80 *j, uint32_t first, uint32_t n, const uint16_t *keys,
                         const uint16_t *values, struct shared s)
{
    unsigned lane = threadIdx.x % 32;

    if (!any_visible(j->a, &j->rows, first, n))
        return;
    rotate_queries(j->t, j->head, &j->rows, first, s);
    score_exact(j->t, j->head, keys, n, j->rows.n, s);
    softmax(j->a, &j->rows, first, n, n, s);
    for_sums<S>(j, [&](float *sum, uint32_t, unsigned tile, unsigned y) {
        *sum *= s.factor[row_of<S>(lane, tile, y & 1)];
    });
    add_exact(j->t, values, n, j->rows.n, s);
}

template <class S> DEVICE void attend_all_exact(const struct job_80 *j, uint32_t kv_head, struct shared s)
{
    load_queries(j->t, &j->rows, s);
    __syncthreads();
    if (j->span.has_sinks) {
        const uint8_t *payload = j->seq->payloads[0];

        attend_exact<S>(j, 0, j->t->n_sink, (const uint16_t *) (payload + j->head->sinks_k),
                        (const uint16_t *) (payload + j->head->sinks_v), s);
    }
    for (uint32_t at = 0; j->span.has_tail && at < j->seq->n_exact; at += TOKENS) {
        uint32_t left = j->seq->n_exact - at;
        size_t row = ((size_t) kv_head * j->seq->exact_ld + j->seq->first_row + at) * j->t->d;

        attend_exact<S>(j, j->seq->n_pages * TOKENS + at, left < TOKENS ? left : (uint32_t) TOKENS,
                        j->seq->exact_k + row, j->seq->exact_v + row, s);
    }
    __syncthreads();
}

/* Stores the partial result in the layout that kvc_merge reads. */
template <class S> DEVICE void store(const struct job_80 *j, struct shared exact, bool any_exact, float *ret)
{
    float *acc = ret + 2 * ROWS, *exact_at = acc + j->t->columns_max * ROWS;
    unsigned lane = threadIdx.x % 32;

    if (threadIdx.x < j->rows.n) {
        ret[threadIdx.x] = exact.max[threadIdx.x];
        ret[ROWS + threadIdx.x] = exact.sum[threadIdx.x];
    }
    for_sums<S>(j, [&](const float *sum, uint32_t i, unsigned tile, unsigned y) {
        acc[(16 * i + (lane >> 2) + (y >> 1) * 8) * ROWS + 8 * tile + 2 * (lane & 3) + (y & 1)] = *sum;
    });
    for (uint32_t i = threadIdx.x; i < j->rows.n * j->t->d; i += LAUNCH_THREADS)
        exact_at[i] = any_exact ? exact.exact[i] : 0;
}

template <class S> DEVICE void attend_80(const struct launch_attend *a)
{
    const struct device_table *t = a->table;
    const struct launch_attend_item *item = &a->items[blockIdx.z];
    uint32_t kv_head = blockIdx.x % t->n_kv_heads, tile = blockIdx.x / t->n_kv_heads;
    struct packed_values<S> values;
    struct softmax_80<S> x;
    struct job_80 j;

    if (tile * LAUNCH_TILE_QUERIES(t->group) >= item->n_q)
        return;
    j = {a,
         t,
         item->seq,
         t->heads + a->layer * t->n_kv_heads + kv_head,
         rows_of(t, item, tile, kv_head),
         {dynamic_shared, attend_80_shape(S::DIM, S::N_ROWS, t->key_rank_max, t->columns_max,
                                          t->block_bytes_max, launch_exact_shared_bytes(t->d, t->n_planes))},
         {0, 0, false, false},
         0};
    j.span = span_of(a, j.seq, &j.rows);
    j.n_pairs = j.span.from < j.span.to ? (j.span.to - j.span.from + 1) / 2 : 0;
    struct shared exact = carve(dynamic_shared + j.s.at.exact, t);
    bool any_exact = j.span.has_sinks || (j.span.has_tail && j.seq->n_exact > 0);

    for_sums<S>(&j, [&](float *sum, uint32_t, unsigned, unsigned) { *sum = 0; });
    begin_softmax<S>(a, &j.rows, t->n_sink, j.span.to, threadIdx.x % 32, &x);
    if (j.n_pairs > 0) {
        load_tables(&j);
        put_tiles(t, a->layer, j.head, j.s);
        attend_pairs<S>(&j, &x, &values);
    }
    finish_softmax<S>(&j, &x, exact.max, exact.sum);
    for_sums<S>(&j, [&](float *sum, uint32_t, unsigned, unsigned) {
        float all = S::BOTH ? *sum + value_across(*sum, 2) : *sum; /* columns of upper and of lower bytes */

        *sum = all / WEIGHT_ONE;
    });
    for (uint32_t i = threadIdx.x; any_exact && i < ROWS * t->d; i += LAUNCH_THREADS)
        exact.exact[i] = 0;
    __syncthreads();
    if (any_exact)
        attend_all_exact<S>(&j, kv_head, exact);
    store<S>(&j, exact, any_exact,
             partials_of(a, blockIdx.z, tile, kv_head) +
                 blockIdx.y * LAUNCH_PARTIAL_FLOATS(t->columns_max, t->d));
}

/* Grid: (KV heads x tiles, splits, items). */
#define ATTEND_80_KERNEL(name, d, n_key_coords, n_columns, n_rows)                                           \
    KERNEL void __launch_bounds__(LAUNCH_THREADS, ATTEND_80_BLOCKS(d, n_key_coords, n_rows))                 \
        name(PARAMETER struct launch_attend a)                                                               \
    {                                                                                                        \
        attend_80<size_80<d, n_key_coords, n_columns, n_rows>>(&a);                                          \
    }
ATTEND_80_KERNELS(ATTEND_80_KERNEL)
