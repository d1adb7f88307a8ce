/*
 * Attention over packed pages and exact rows, for any head dimension, rank and width: the general kernels.
 * One block of four warps takes one (sequence, KV head, split of the pages, tile of queries). Its rows are
 * whole queries with all query heads of the KV head: one new token to decode, or as many queries of a prompt
 * as 16 rows take, so that the keys of a page are decoded once for all of them. A second kernel merges splits
 * and decodes values.
 *
 * Per page of 64 tokens, with fragments as gpu/README.md draws them:
 *     queries   rotated to the page's frame: one angle per plane and page; the rotations by which rows differ
 *               are applied once before
 *     keys      [16 tokens, 16 coordinates] levels x dec' -> [16 tokens, 8 planes], rotated by in-page
 *               offsets
 *     scores    keys x queries in the page's frame, plus the part of the key mean in binary32 (a bias may
 *               have norm 900)
 *     softmax   base 2, maxima and sums stored per row
 *     values    [16 coordinates, 16 tokens] levels x weights, in rank space; codes of K too where V is
 *               predicted
 *
 * The number of fragments that a block has registers for is a parameter (struct size): the launch picks the
 * smallest kernel that a table fits. Every warp computes the keys of 16 tokens; coordinates of values are
 * divided among the warps.
 *
 * Rounding: keys, queries, dec of keys and weights are binary16, sums binary32. The
 * tests derive a bound of the error.
 */
#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/exact.h"
#include "gpu/cuda/kernels/queries.h"
#include "gpu/cuda/kernels/softmax.h"

/* Sizes of the registers of a block, as constants, so that indices are constants: k-steps of keys (16
 * coordinates each), tiles of 16 coordinates of values per warp, tiles of 8 rows. */
template <int K, int V, int R> struct size {
    enum { KEY_STEPS = K, VALUE_TILES = V, ROW_TILES = R };
};

/* ---- scores ---- */

/* One tile of 8 planes for 16 tokens, from the codes alone. */
template <class S>
DEVICE void key_tile(const struct device_head *head, uint32_t n_planes, const uint32_t (*levels)[4],
                     uint32_t hi, uint32_t plane, unsigned lane, float c[4])
{
    const uint16_t *dec = head->dec_k + (hi * n_planes + plane + (lane >> 2)) * head->k.r + 2 * (lane & 3);

    c[0] = c[1] = c[2] = c[3] = 0;
    UNROLL
    for (unsigned i = 0; i < S::KEY_STEPS; i++)
        if (i < head->k.n_half / 2u)
            mma_16x8x16(c, levels[i], *(const uint32_t *) (dec + 16 * i),
                        *(const uint32_t *) (dec + 16 * i + 8));
}

/* Keys of 8 planes rotated by in-page offsets, as quarters of two operands: lo and hi. */
template <class S>
DEVICE void rotated_tile(const struct device_table *t, const struct device_head *head,
                         const uint32_t (*levels)[4], uint32_t plane, unsigned first, unsigned lane,
                         uint32_t lo[2], uint32_t hi[2])
{
    float x[4], y[4];

    key_tile<S>(head, t->n_planes, levels, 0, plane, lane, x);
    key_tile<S>(head, t->n_planes, levels, 1, plane, lane, y);
    for (unsigned i = 0; i < 4; i++) {
        unsigned p = plane + 2 * (lane & 3) + (i & 1), token = first + (lane >> 2) + (i >> 1) * 8;
        float c = t->cosine[p * TOKENS + token] * head->dec_k_scale,
              sn = t->sine[p * TOKENS + token] * head->dec_k_scale;
        float rotated = x[i] * c - y[i] * sn;

        y[i] = y[i] * c + x[i] * sn;
        x[i] = rotated;
    }
    for (unsigned i = 0; i < 2; i++) {
        lo[i] = pack_halves(x[2 * i], x[2 * i + 1]);
        hi[i] = pack_halves(y[2 * i], y[2 * i + 1]);
    }
}

/* Scores of the 16 tokens of this warp in a page, for all query heads: the
 * part of the codes, without the mean. */
template <class S>
DEVICE void score_codes(const struct launch_attend *a, const struct device_head *head, const uint8_t *block,
                        struct shared s)
{
    const struct device_table *t = a->table;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 16 * warp;
    uint32_t levels[S::KEY_STEPS][4];
    float c[S::ROW_TILES][4] = {{0}};

    UNROLL
    for (unsigned i = 0; i < S::KEY_STEPS; i++) {
        if (i >= head->k.n_half / 2u)
            break;
        UNROLL
        for (unsigned x = 0; x < 4; x++) /* rows g, g + 8 of columns 2t, then of 2t + 8 */
            levels[i][x] = levels_at(t->levels, &head->k, block, 2 * i + (x >> 1), lane, 2 * warp + (x & 1));
    }
    for (uint32_t plane = 0; plane < t->n_planes; plane += 16) {
        uint32_t lo[4], hi[4];

        rotated_tile<S>(t, head, levels, plane, first, lane, lo, hi);
        rotated_tile<S>(t, head, levels, plane + 8, first, lane, lo + 2, hi + 2);
        UNROLL
        for (unsigned n = 0; n < S::ROW_TILES; n++) {
            const uint16_t *q = s.query16 + (8 * n + (lane >> 2)) * 2 * t->n_planes + plane + 2 * (lane & 3);

            mma_16x8x16(c[n], lo, *(const uint32_t *) q, *(const uint32_t *) (q + 8));
            q += t->n_planes;
            mma_16x8x16(c[n], hi, *(const uint32_t *) q, *(const uint32_t *) (q + 8));
        }
    }
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            s.scores[(first + (lane >> 2) + (i >> 1) * 8) * SCORE_LD + 8 * n + 2 * (lane & 3) + (i & 1)] =
                c[n][i];
    }
    __syncthreads();
}

/* ---- values ---- */

template <class S> DEVICE void scale_tile(float c[S::ROW_TILES][4], unsigned lane, struct shared s)
{
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            c[n][i] *= s.factor[8 * n + 2 * (lane & 3) + (i & 1)];
    }
}

/* 16 coordinates times the weights of 16 tokens. */
template <class S>
DEVICE void add_tile(float c[S::ROW_TILES][4], const uint32_t levels[4], unsigned tokens, unsigned lane,
                     struct shared s)
{
    UNROLL
    for (unsigned n = 0; n < S::ROW_TILES; n++) {
        const uint16_t *w = s.weights + (8 * n + (lane >> 2)) * WEIGHT_LD + 16 * tokens + 2 * (lane & 3);

        mma_16x8x16(c[n], levels, *(const uint32_t *) w, *(const uint32_t *) (w + 8));
    }
}

/* Coordinates 16 @tile .. of V. */
template <class S>
DEVICE void add_values(const struct device_table *t, const struct device_codes *v, const uint8_t *block,
                       uint32_t tile, float c[S::ROW_TILES][4], struct shared s)
{
    unsigned lane = threadIdx.x % 32;

    for (unsigned k = 0; k < TOKENS / 16; k++) {
        uint32_t levels[4]; /* coordinates g, g + 8 of tokens 2t, then of 2t + 8 */

        for (unsigned x = 0; x < 4; x++)
            levels[x] = levels_at(t->levels + 9 * 256, v, block, 2 * tile + (x & 1), lane, 2 * k + (x >> 1));
        add_tile<S>(c, levels, k, lane, s);
    }
}

/* Coordinates 16 @tile .. of K, tokens as columns. */
template <class S>
DEVICE void add_keys(const struct device_table *t, const struct device_codes *k, const uint8_t *block,
                     uint32_t tile, float c[S::ROW_TILES][4], struct shared s)
{
    unsigned lane = threadIdx.x % 32;

    for (unsigned step = 0; step < TOKENS / 16; step++) {
        uint32_t levels[4];

        for (unsigned x = 0; x < 4; x++) {
            unsigned coord = 16 * tile + (lane >> 2) + (x & 1) * 8,
                     token = 16 * step + 2 * (lane & 3) + (x >> 1) * 8;

            levels[x] = key_level(t->levels, k, block, token, coord) |
                        key_level(t->levels, k, block, token + 1, coord) << 16;
        }
        add_tile<S>(c, levels, step, lane, s);
    }
}

/* The tiles of this warp of everything that values are decoded from: keys of the predictors one after the
 * other, then V. */
template <class S>
DEVICE void accumulate(const struct launch_attend *a, const struct device_head *head, const uint8_t *payload,
                       float c[S::VALUE_TILES][S::ROW_TILES][4], struct shared s)
{
    const struct device_table *t = a->table;
    const struct device_head *layer = t->heads + a->layer * t->n_kv_heads;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t before = 0; /* tiles of the earlier sources */

    for (uint32_t i = 0; i <= head->n_predictors; i++) {
        const struct device_head *from = i < head->n_predictors ? layer + head->first_predictor + i : head;
        const struct device_codes *codes = i < head->n_predictors ? &from->k : &from->v;

        UNROLL
        for (uint32_t x = 0; x < S::VALUE_TILES; x++) {
            uint32_t tile = warp + x * WARPS - before;

            if (warp + x * WARPS < before || tile >= codes->n_half / 2u)
                continue;
            scale_tile<S>(c[x], lane, s);
            if (i < head->n_predictors)
                add_keys<S>(t, codes, payload + from->block, tile, c[x], s);
            else
                add_values<S>(t, codes, payload + from->block, tile, c[x], s);
        }
        before += codes->n_half / 2u;
    }
}

/* ---- the kernels ---- */

template <class S>
DEVICE void attend_page(const struct launch_attend *a, const struct device_head *head,
                        const struct device_seq *seq, uint32_t page, const struct rows *rows,
                        float c[S::VALUE_TILES][S::ROW_TILES][4], struct shared s)
{
    const struct device_table *t = a->table;
    const uint8_t *payload = seq->payloads[page];
    uint32_t first = page * TOKENS, n_sink = page == 0 ? t->n_sink : 0;

    if (!any_visible(a, rows, first, TOKENS))
        return;
    rotate_queries(t, head, rows, first, s);
    score_codes<S>(a, head, payload + head->block, s);
    add_mean_scores(t, rows->n, s);
    if (n_sink > 0)
        score_exact(t, head, (const uint16_t *) (payload + head->sinks_k), n_sink, rows->n, s);
    softmax(a, rows, first, TOKENS, n_sink, s);
    accumulate<S>(a, head, payload, c, s);
    /* rescales the sums also without sinks */
    add_exact(t, (const uint16_t *) (payload + head->sinks_v), n_sink, rows->n, s);
}

template <class S>
DEVICE void attend_tail(const struct launch_attend *a, const struct device_head *head,
                        const struct device_seq *seq, uint32_t kv_head, uint32_t at, const struct rows *rows,
                        float c[S::VALUE_TILES][S::ROW_TILES][4], struct shared s)
{
    const struct device_table *t = a->table;
    uint32_t first = seq->n_pages * TOKENS + at, left = seq->n_exact - at,
             n = left < TOKENS ? left : (uint32_t) TOKENS;
    size_t exact = ((size_t) kv_head * seq->exact_ld + seq->first_row + at) * t->d;

    if (!any_visible(a, rows, first, n))
        return;
    rotate_queries(t, head, rows, first, s);
    score_exact(t, head, seq->exact_k + exact, n, rows->n, s);
    softmax(a, rows, first, n, n, s);
    UNROLL
    for (unsigned x = 0; x < S::VALUE_TILES; x++)
        scale_tile<S>(c[x], threadIdx.x % 32, s);
    add_exact(t, seq->exact_v + exact, n, rows->n, s);
}

/* Stores per row: maximum, sum; then accumulators [columns_max][ROWS], of which warp w has tiles w, w + 4
 * .. of 16 columns; then exact values [ROWS][d]. */
template <int VALUE_TILES, int ROW_TILES>
DEVICE void store_partial(const struct device_table *t, uint32_t n_rows,
                          const float c[VALUE_TILES][ROW_TILES][4], const float *max, const float *sum,
                          const float *exact, float *ret)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *acc = ret + 2 * ROWS, *exact_at = acc + t->columns_max * ROWS;

    if (threadIdx.x < n_rows) {
        ret[threadIdx.x] = max[threadIdx.x];
        ret[ROWS + threadIdx.x] = sum[threadIdx.x];
    }
    UNROLL
    for (uint32_t x = 0; x < VALUE_TILES; x++) {
        UNROLL
        for (unsigned n = 0; n < ROW_TILES; n++) {
            UNROLL
            for (unsigned i = 0; i < 4; i++) {
                uint32_t col = 16 * (warp + x * WARPS) + (lane >> 2) + (i >> 1) * 8;

                if (col < t->columns_max)
                    acc[col * ROWS + 8 * n + 2 * (lane & 3) + (i & 1)] = c[x][n][i];
            }
        }
    }
    for (uint32_t i = threadIdx.x; i < n_rows * t->d; i += LAUNCH_THREADS)
        exact_at[i] = exact[i];
}

/* The pages of a split are one of n_splits runs of equal length; the last split also has the tail. */
template <class S> DEVICE void attend(const struct launch_attend *a)
{
    const struct device_table *t = a->table;
    const struct launch_attend_item *item = &a->items[blockIdx.z];
    const struct device_seq *seq = item->seq;
    uint32_t kv_head = blockIdx.x % t->n_kv_heads, tile = blockIdx.x / t->n_kv_heads;
    uint32_t share = (seq->n_pages + a->n_splits - 1) / a->n_splits, page = blockIdx.y * share;
    const struct device_head *head = t->heads + a->layer * t->n_kv_heads + kv_head;
    struct rows rows = rows_of(t, item, tile, kv_head);
    struct shared s = carve(dynamic_shared, t);
    float c[S::VALUE_TILES][S::ROW_TILES][4] = {{{0}}};

    if (tile * LAUNCH_TILE_QUERIES(t->group) >= item->n_q)
        return;
    for (uint32_t i = threadIdx.x; i < ROWS * t->d; i += LAUNCH_THREADS)
        s.exact[i] = 0;
    if (threadIdx.x < ROWS) {
        s.max[threadIdx.x] = LEAST;
        s.sum[threadIdx.x] = 0;
    }
    load_queries(t, &rows, s);
    __syncthreads();
    for (uint32_t end = page + share; page < end && page < seq->n_pages; page++)
        attend_page<S>(a, head, seq, page, &rows, c, s);
    if (blockIdx.y + 1 == a->n_splits)
        for (uint32_t at = 0; at < seq->n_exact; at += TOKENS)
            attend_tail<S>(a, head, seq, kv_head, at, &rows, c, s);
    __syncthreads();
    store_partial<S::VALUE_TILES, S::ROW_TILES>(t, rows.n, c, s.max, s.sum, s.exact,
                                                partials_of(a, blockIdx.z, tile, kv_head) +
                                                    blockIdx.y * LAUNCH_PARTIAL_FLOATS(t->columns_max, t->d));
}

/* Grid of all kernels: (KV heads x tiles, splits, items). ATTEND_KERNELS has their names and limits. */
#define ATTEND_KERNEL(name, n_key_coords, n_columns, n_rows)                                                 \
    KERNEL void __launch_bounds__(LAUNCH_THREADS) name(PARAMETER struct launch_attend a)                     \
    {                                                                                                        \
        attend<size<n_key_coords / 16, n_columns / 16 / WARPS, n_rows / 8>>(&a);                             \
    }
ATTEND_KERNELS(ATTEND_KERNEL)

/* Grid: (query heads of a KV head x queries, KV heads, items). Each block merges the splits of one output
 * row, decodes and divides. */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_merge(PARAMETER struct launch_attend a)
{
    const struct device_table *t = a.table;
    const struct launch_attend_item *item = &a.items[blockIdx.z];
    const struct device_head *head = t->heads + a.layer * t->n_kv_heads + blockIdx.y;
    uint32_t query = blockIdx.x / t->group, in_group = blockIdx.x % t->group,
             tile = query / LAUNCH_TILE_QUERIES(t->group);
    uint32_t row = query % LAUNCH_TILE_QUERIES(t->group) * t->group + in_group,
             ld = LAUNCH_PARTIAL_FLOATS(t->columns_max, t->d);
    const float *partials = partials_of(&a, blockIdx.z, tile, blockIdx.y);
    float *out = item->out + (((size_t) query * t->n_kv_heads + blockIdx.y) * t->group + in_group) * t->d;
    float *sums = (float *) dynamic_shared; /* [r_in] */
    float largest = LEAST, total = 0;

    if (query >= item->n_q)
        return;
    for (uint32_t i = 0; i < a.n_splits; i++)
        largest = fmaxf(largest, partials[i * ld + row]);
    for (uint32_t i = 0; i < a.n_splits; i++)
        total += partials[i * ld + ROWS + row] * exp2_fast(partials[i * ld + row] - largest);
    for (uint32_t col = threadIdx.x; col < head->r_in; col += LAUNCH_THREADS) {
        float sum = 0;

        for (uint32_t i = 0; i < a.n_splits; i++)
            sum +=
                partials[i * ld + 2 * ROWS + col * ROWS + row] * exp2_fast(partials[i * ld + row] - largest);
        sums[col] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < t->d; i += LAUNCH_THREADS) {
        const float *exact = partials + 2 * ROWS + t->columns_max * ROWS + row * t->d + i;
        float sum = 0;

        for (uint32_t split = 0; split < a.n_splits; split++)
            sum += exact[split * ld] * exp2_fast(partials[split * ld + row] - largest);
        for (uint32_t col = 0; col < head->r_in; col++)
            sum += head->dec_v[i * head->r_in + col] * sums[col];
        out[i] = head->mean_v[i] + sum / total;
    }
}
