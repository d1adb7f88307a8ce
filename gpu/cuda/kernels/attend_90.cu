/*
 * Attention over packed pages and exact rows on compute capability 9.0: head dimensions 64, 128 and 256, any
 * rank and widths, V predicted from the K codes of its own head or not predicted (gpu/cuda/select.h has the
 * exact rule). Partial results have the layout of attend.cu, so kvc_merge serves both.
 *
 * As in attend.cu, one block takes one (item, KV head, split of the pages, tile of queries). Its first
 * warpgroup works in advance: one warp fetches the block of this head of every page by bulk copies into a
 * ring, the others rotate the queries to the frames of the next pieces. The second warpgroup attends, one
 * page at a time, 16 tokens per warp:
 *
 *     levels x dec'   [64 tokens, d] product of the warpgroup, levels from registers,
 *                     dec' in shared memory                                                  keys_90.h
 *     mean            its scores by cosines and sines, constants in registers, while the
 *                     keys are multiplied
 *     keys            rotated by in-page offsets in registers, then times the queries
 *     weights         base 2, under a reference that is raised seldom                        values_90.h
 *     values          levels x weights in rank space, codes of K too where V is predicted
 *
 * Sinks and tail are pieces like pages: only their keys and values come from elsewhere.
 *
 * Rounding: as in attend.cu, but keys before and after their rotation, cosines and sines are binary16, and so
 * is every partial sum over 16 coordinates. The tests derive a bound of the error.
 */
#include "gpu/cuda/kernels/prefetch_90.h"
#include "gpu/cuda/kernels/keys_90.h"
#include "gpu/cuda/kernels/values_90.h"

/* Registers of a thread when this many blocks share a multiprocessor: at launch, then by warpgroup. A block
 * that is alone has enough registers. */
template <int BLOCKS> struct registers;
template <> struct registers<3> {
    enum { AT_LAUNCH = 80, AHEAD = 40, ATTENDS = 120 };
};
template <> struct registers<2> {
    enum { AT_LAUNCH = 128, AHEAD = 56, ATTENDS = 200 };
};

/* Stores sums of weights times exact values, of tiles of 16 dimensions, in the place of the split at @ret. */
template <class S>
DEVICE void store_exact(const struct device_table *t, uint32_t n_rows, float (*exact)[S::ROW_TILES][4],
                        float *ret)
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;

    UNROLL
    for (unsigned x = 0; x < S::EXACT_TILES; x++) {
        UNROLL
        for (unsigned n = 0; n < S::ROW_TILES; n++) {
            UNROLL
            for (unsigned i = 0; i < 4; i++) {
                uint32_t row = 8 * n + 2 * (lane % 4) + (i & 1);

                if (row < n_rows)
                    ret[row * t->d + 16 * (warp + x * ATTENDING_WARPS) + lane / 4 + (i >> 1) * 8] =
                        exact[x][n][i];
            }
        }
    }
}

/* Stores per row: maximum, sum; then columns [columns_max][ROWS]; exact values follow. */
template <class S>
DEVICE void store_sums(const struct device_table *t, struct block_90 b, const struct sums_90<S> *s,
                       float *ret)
{
    unsigned warp = threadIdx.x % ATTENDING / 32, lane = threadIdx.x % 32;
    float *totals = b.rows + ATTENDING_WARPS * S::N_ROWS; /* the first half may still be read */

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 2; i++) {
            float x = s->total[n][i];

            for (unsigned across = 4; across < 32; across *= 2)
                x += value_across(x, across);
            if (lane < 4)
                totals[warp * S::N_ROWS + 8 * n + 2 * lane + i] = x;
            if (warp == 0 && lane < 4)
                ret[8 * n + 2 * lane + i] = s->reference[n][i];
        }
    }
    threads_sync(ATTENDING_BARRIER, ATTENDING);
    if (threadIdx.x % ATTENDING < S::N_ROWS) {
        float x = 0;

        for (unsigned i = 0; i < ATTENDING_WARPS; i++)
            x += totals[i * S::N_ROWS + threadIdx.x % ATTENDING];
        ret[ROWS + threadIdx.x % ATTENDING] = x;
    }
    UNROLL
    for (unsigned x = 0; x < S::VALUE_TILES; x++) {
        UNROLL
        for (unsigned n = 0; n < S::ROW_TILES; n++) {
            UNROLL
            for (unsigned i = 0; i < 4; i++) {
                uint32_t column = 16 * (warp + x * ATTENDING_WARPS) + lane / 4 + (i >> 1) * 8;

                if (column < t->columns_max)
                    ret[2 * ROWS + column * ROWS + 8 * n + 2 * (lane % 4) + (i & 1)] = s->columns[x][n][i];
            }
        }
    }
}

/* ---- the attending warpgroup ---- */

/* Scores of a piece in base 2: the part of the keys plus the part of the mean; scores that a row does not
 * see are hidden. */
template <class S>
DEVICE void finish_scores(const struct work *w, const struct head_90 *head, const struct piece *p,
                          const float mean[S::ROW_TILES][4], float scores[S::ROW_TILES][4])
{
    float scale = p->exact ? 2 : head->key_scale;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            scores[n][i] = scores[n][i] * scale + mean[n][i] * head->mean_scale;
    }
    if (is_ragged(w, p))
        hide<S>(w, p, scores);
}

template <class S>
DEVICE void attend_page(const struct work *w, const struct head_90 *head, struct block_90 b,
                        const struct rotations<S> *rotations, uint32_t i, struct stage *page,
                        struct stage *query, struct sums_90<S> *s)
{
    struct piece p = piece_of(w, i);
    const unsigned char *queries = b.queries + query->at * b.shape.query_bytes;
    const uint8_t *codes = b.ring + page->at * b.shape.stage_bytes;
    uint32_t *weights = b.weights + (i & 1) * S::N_ROWS * ATTEND_90_WEIGHT_LD;
    uint32_t levels[S::KEY_STEPS][4], keys[S::DIMS / 4];
    float scores[S::ROW_TILES][4] = {{0}}, mean[S::ROW_TILES][4] = {{0}};

    barrier_wait(&b.full[page->at], page->parity);
    load_key_levels<S>(head, b, codes, levels);
    key_steps<S, S::KEY_STEPS>::queue_some(head->n_key_steps, levels, shared_address(b.dec_k), keys);
    barrier_wait(&b.query_full[query->at], query->parity);
    score_mean<S>(w->table, head, rotations, queries, mean);
    score_keys<S>(w->table, rotations, queries, keys, scores);
    arrive_by_warp(&b.query_empty[query->at]);
    finish_scores<S>(w, head, &p, mean, scores);
    weigh<S>(b, scores, s, 0, 0, weights);
    add_columns<S>(head, b, codes, weights, s);
    arrive_by_warp(&b.empty[page->at]);
    next_stage(page);
    next_stage(query);
}

template <class S>
DEVICE void attend_exact(const struct work *w, const struct head_90 *head, struct block_90 b,
                         const struct rotations<S> *rotations, uint32_t i, struct stage *query,
                         struct sums_90<S> *s, float (*exact)[S::ROW_TILES][4])
{
    struct piece p = piece_of(w, i);
    const unsigned char *queries = b.queries + query->at * b.shape.query_bytes;
    uint32_t *weights = b.weights + (i & 1) * S::N_ROWS * ATTEND_90_WEIGHT_LD;
    uint32_t keys[S::DIMS / 4];
    float scores[S::ROW_TILES][4] = {{0}}, mean[S::ROW_TILES][4] = {{0}};

    load_exact_keys<S>(w->table, &p, keys);
    barrier_wait(&b.query_full[query->at], query->parity);
    score_mean<S>(w->table, head, rotations, queries, mean);
    score_keys<S>(w->table, rotations, queries, keys, scores);
    arrive_by_warp(&b.query_empty[query->at]);
    finish_scores<S>(w, head, &p, mean, scores);
    weigh<S>(b, scores, s, exact, S::EXACT_TILES, weights);
    add_exact_values<S>(w->table, &p, weights, exact);
    next_stage(query);
}

template <class S> DEVICE void attend(const struct work *w, struct block_90 b, float *ret)
{
    struct stage page = {b.shape.n_stages, 0, 0}, query = {S::QUERY_STAGES, 0, 0};
    struct sums_90<S> s = {
        {{0}}, {{0}},
        {
            {
                {
                    0
                }
            }
        }
    };
    float exact[S::EXACT_TILES][S::ROW_TILES][4] = {{{0}}};
    struct rotations<S> rotations;
    struct head_90 head = head_of(w->head, threadIdx.x % ATTENDING / 32);
    uint32_t i = 0;

    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++)
        s.reference[n][0] = s.reference[n][1] = LEAST;
    load_rotations<S>(w->table, &rotations);
    for (; i < w->n_pages; i++)
        attend_page<S>(w, &head, b, &rotations, i, &page, &query, &s);
    for (; i < w->n; i++)
        attend_exact<S>(w, &head, b, &rotations, i, &query, &s, exact);
    store_sums<S>(w->table, b, &s, ret);
    store_exact<S>(w->table, w->rows.n, exact, ret + (2 + w->table->columns_max) * ROWS);
}

/* ---- the kernels ---- */

template <class S> DEVICE void attend_90(const struct launch_attend *a)
{
    const struct device_table *t = a->table;
    const struct launch_attend_item *item = &a->items[blockIdx.z];
    uint32_t kv_head = blockIdx.x % t->n_kv_heads, tile = blockIdx.x / t->n_kv_heads;
    struct block_90 b = block_of<S>(t);
    struct work w;

    if (tile * LAUNCH_TILE_QUERIES(t->group) >= item->n_q)
        return;
    w = work_of(a, item, tile, kv_head);
    begin_barriers<S>(b);
    if (threadIdx.x >= FETCHING)
        fill_block<S>(&w, b);
    if (threadIdx.x < ATTEND_90_THREADS - ATTENDING) {
        if constexpr (S::BLOCKS > 1)
            registers_give<registers<S::BLOCKS>::AHEAD, registers<S::BLOCKS>::AT_LAUNCH>();
        if (threadIdx.x < FETCHING)
            fetch(&w, b);
        else
            rotate<S>(&w, b, (threadIdx.x - FETCHING) / 32);
    } else {
        if constexpr (S::BLOCKS > 1)
            registers_take<registers<S::BLOCKS>::ATTENDS, registers<S::BLOCKS>::AT_LAUNCH>();
        attend<S>(&w, b,
                  partials_of(a, blockIdx.z, tile, kv_head) +
                      blockIdx.y * LAUNCH_PARTIAL_FLOATS(t->columns_max, t->d));
    }
}

/* Grid of all kernels: (KV heads x tiles, splits, items). ATTEND_90_KERNELS has their names and limits. */
#define ATTEND_90_KERNEL(name, d, n_rows)                                                                    \
    KERNEL void __launch_bounds__(ATTEND_90_THREADS, size_90<d, n_rows>::BLOCKS)                             \
        name(PARAMETER struct launch_attend a)                                                               \
    {                                                                                                        \
        attend_90<size_90<d, n_rows>>(&a);                                                                   \
    }
ATTEND_90_KERNELS(ATTEND_90_KERNEL)
