/*
 * Attention of one new token per sequence over packed pages and exact rows, for any head dimension, rank and width: the
 * general path. One block of four warps takes one (sequence, KV head, split of the pages) with all its query heads; a
 * second kernel merges splits and decodes.
 *
 * Per page of 64 tokens, fragments as gpu/README.md draws them:
 *     keys      [16 tokens, 16 coordinates] levels x dec' -> [16 tokens, 8 planes], turned by in-page offsets
 *     scores    keys x queries in the page's frame, plus the key mean's in binary32 (a bias may have norm 900)
 *     softmax   base 2, maxima and sums kept per query head
 *     values    [16 coordinates, 16 tokens] levels x weights, in rank space, K's codes too where V is predicted
 * Every warp computes 16 tokens' keys; coordinates of values are shared out over the warps.
 *
 * Rounding: keys, queries, dec of keys and weights are binary16, sums binary32; the error is bounded in
 * tests/unit/gpu/cuda/test_kernels.cpp, which runs this file on the CPU.
 */
#include "gpu/cuda/kernels/codes.h"
#include "gpu/cuda/kernels/device.h"
#include "gpu/cuda/kernels/plan.h"

enum {
    TOKENS = 64,
    WARPS = PLAN_THREADS / 32,
    HEADS = PLAN_GROUP_MAX,
    HEAD_TILES = HEADS / 8,
    PAIRS_MAX = PLAN_HALVES_MAX / 2,                       /* of half-tiles: k-steps of keys */
    VALUE_TILES = PLAN_COLUMNS_MAX / 16 / WARPS,           /* of 16 coordinates, per warp */
    SCORE_LD = HEADS + 1,
    WEIGHT_LD = TOKENS + 8,
};

#define LOG2_E 1.4426950408889634f
#define LEAST (-1e30f) /* below every score; finite, so that differences are */

/* What a block keeps in shared memory. */
struct shared {
    float *query;        /* [HEADS][2][n_planes] in the frame of the block of keys, times scale and log2 e */
    uint16_t *query16;   /* the same in binary16 */
    float *mean_terms;   /* [HEADS][2][n_planes] factors of cosine and sine in the score of the key mean */
    float *scores;       /* [TOKENS][SCORE_LD] scores, then weights */
    uint16_t *weights;   /* [HEADS][WEIGHT_LD] binary16, zero for exact keys */
    float *max, *sum, *factor; /* [HEADS] */
    float *exact;        /* [HEADS][d] weights times exact values */
};

DEVICE struct shared carve(unsigned char *at, const struct plan_table *t)
{
    struct shared s;
    uint32_t planes = HEADS * 2 * t->n_planes;

    s.query = (float *) at;
    s.mean_terms = s.query + planes;
    s.scores = s.mean_terms + planes;
    s.max = s.scores + TOKENS * SCORE_LD;
    s.sum = s.max + HEADS;
    s.factor = s.sum + HEADS;
    s.exact = s.factor + HEADS;
    s.query16 = (uint16_t *) (s.exact + HEADS * t->d);
    s.weights = s.query16 + planes;
    return s;
}

/* Dimension of plane @i, its first or second. */
DEVICE uint32_t plane_dim(const struct plan_table *t, uint32_t i, uint32_t hi)
{
    uint32_t half = t->n_rot / 2;

    return i < half ? i + hi * half : 2 * i + hi;
}

/* ---- queries ------------------------------------------------------------------------------------------------------- */

/* Queries turned to the frame of the keys that begin @back positions before them, and the terms of the key mean. */
DEVICE void turn_queries(const struct plan_attend *a, const struct plan_head *head, const float *q, double back,
                         struct shared s)
{
    const struct plan_table *t = a->table;
    uint32_t n = t->n_planes;

    for (uint32_t i = threadIdx.x; i < HEADS * n; i += PLAN_THREADS) {
        uint32_t row = i / n, p = i % n, at = row * 2 * n + p;
        float lo = 0, hi = 0;

        if (row < t->group && p < t->d / 2) {
            double turns = t->freq[p] * back * 0.15915494309189535; /* reduced in binary64, so that positions may be long */
            float angle = (float) ((turns - floor(turns)) * 6.283185307179586);
            float c = cosf(angle), sn = sinf(angle), scale = t->attn_scale * LOG2_E;
            float x = q[row * t->d + plane_dim(t, p, 0)] * scale, y = q[row * t->d + plane_dim(t, p, 1)] * scale;

            lo = x * c - y * sn;
            hi = y * c + x * sn;
        }
        s.query[at] = lo;
        s.query[at + n] = hi;
        s.query16[at] = (uint16_t) pack_halves(lo, 0);
        s.query16[at + n] = (uint16_t) pack_halves(hi, 0);
        s.mean_terms[at] = lo * head->mean_k[p] + hi * head->mean_k[n + p];
        s.mean_terms[at + n] = hi * head->mean_k[p] - lo * head->mean_k[n + p];
    }
    __syncthreads();
}

/* ---- scores -------------------------------------------------------------------------------------------------------- */

/* One tile of 8 planes for 16 tokens, as far as the codes go. */
DEVICE void key_tile(const struct plan_head *head, uint32_t n_planes, const uint32_t (*levels)[4], uint32_t hi,
                     uint32_t plane, unsigned lane, float c[4])
{
    const uint16_t *dec = head->dec_k + (hi * n_planes + plane + (lane >> 2)) * head->k.r + 2 * (lane & 3);

    c[0] = c[1] = c[2] = c[3] = 0;
    for (uint32_t i = 0; i < head->k.n_half / 2u; i++)
        mma_16x8x16(c, levels[i], *(const uint32_t *) (dec + 16 * i), *(const uint32_t *) (dec + 16 * i + 8));
}

/* Keys of 8 planes turned by in-page offsets, as two operands' quarters: lo and hi. */
DEVICE void turned_tile(const struct plan_table *t, const struct plan_head *head, const uint32_t (*levels)[4], uint32_t plane,
                        unsigned first, unsigned lane, uint32_t lo[2], uint32_t hi[2])
{
    float x[4], y[4];

    key_tile(head, t->n_planes, levels, 0, plane, lane, x);
    key_tile(head, t->n_planes, levels, 1, plane, lane, y);
    for (unsigned i = 0; i < 4; i++) {
        unsigned p = plane + 2 * (lane & 3) + (i & 1), token = first + (lane >> 2) + (i >> 1) * 8;
        float c = t->cosine[p * TOKENS + token] * head->dec_k_scale, sn = t->sine[p * TOKENS + token] * head->dec_k_scale;
        float turned = x[i] * c - y[i] * sn;

        y[i] = y[i] * c + x[i] * sn;
        x[i] = turned;
    }
    for (unsigned i = 0; i < 2; i++) {
        lo[i] = pack_halves(x[2 * i], x[2 * i + 1]);
        hi[i] = pack_halves(y[2 * i], y[2 * i + 1]);
    }
}

/* Scores of this warp's 16 tokens of a page, all query heads: what codes give, without the mean. */
DEVICE void score_codes(const struct plan_attend *a, const struct plan_head *head, const uint8_t *block, struct shared s)
{
    const struct plan_table *t = a->table;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 16 * warp;
    uint32_t levels[PAIRS_MAX][4];
    float c[HEAD_TILES][4] = { { 0 } };

    for (uint32_t i = 0; i < head->k.n_half / 2u; i++)
        for (unsigned x = 0; x < 4; x++) /* rows g, g + 8 of columns 2t, then of 2t + 8 */
            levels[i][x] = levels_at(t->levels, &head->k, block, 2 * i + (x >> 1), lane, 2 * warp + (x & 1));
    for (uint32_t plane = 0; plane < t->n_planes; plane += 16) {
        uint32_t lo[4], hi[4];

        turned_tile(t, head, levels, plane, first, lane, lo, hi);
        turned_tile(t, head, levels, plane + 8, first, lane, lo + 2, hi + 2);
        for (unsigned n = 0; n < HEAD_TILES; n++) {
            const uint16_t *q = s.query16 + (8 * n + (lane >> 2)) * 2 * t->n_planes + plane + 2 * (lane & 3);

            mma_16x8x16(c[n], lo, *(const uint32_t *) q, *(const uint32_t *) (q + 8));
            q += t->n_planes;
            mma_16x8x16(c[n], hi, *(const uint32_t *) q, *(const uint32_t *) (q + 8));
        }
    }
    for (unsigned n = 0; n < HEAD_TILES; n++)
        for (unsigned i = 0; i < 4; i++)
            s.scores[(first + (lane >> 2) + (i >> 1) * 8) * SCORE_LD + 8 * n + 2 * (lane & 3) + (i & 1)] = c[n][i];
    __syncthreads();
}

/* The key mean's share of every score. */
DEVICE void add_mean_scores(const struct plan_table *t, struct shared s)
{
    uint32_t n = t->n_planes;

    for (uint32_t i = threadIdx.x; i < TOKENS * t->group; i += PLAN_THREADS) {
        uint32_t token = i % TOKENS, row = i / TOKENS;
        const float *terms = s.mean_terms + row * 2 * n;
        float sum = 0;

        for (uint32_t p = 0; p < t->d / 2; p++)
            sum += terms[p] * t->cosine[p * TOKENS + token] + terms[n + p] * t->sine[p * TOKENS + token];
        s.scores[token * SCORE_LD + row] += sum;
    }
    __syncthreads();
}

/* Scores of @n exact keys, rows [d] of x - mean with the block's first position at offset 0: over what stood there. */
DEVICE void score_exact(const struct plan_table *t, const struct plan_head *head, const uint16_t *rows, uint32_t n_keys,
                        struct shared s)
{
    uint32_t n = t->n_planes;

    for (uint32_t i = threadIdx.x; i < n_keys * t->group; i += PLAN_THREADS) {
        uint32_t token = i / t->group, row = i % t->group;
        const float *q = s.query + row * 2 * n;
        float sum = 0;

        for (uint32_t p = 0; p < t->d / 2; p++) {
            float lo = head->mean_k[p] + half_to_float(rows[token * t->d + plane_dim(t, p, 0)]);
            float hi = head->mean_k[n + p] + half_to_float(rows[token * t->d + plane_dim(t, p, 1)]);

            sum += (q[p] * lo + q[n + p] * hi) * t->cosine[p * TOKENS + token] +
                   (q[n + p] * lo - q[p] * hi) * t->sine[p * TOKENS + token];
        }
        s.scores[token * SCORE_LD + row] = sum;
    }
    __syncthreads();
}

/* ---- softmax ------------------------------------------------------------------------------------------------------- */

/*
 * Keys from .. to - 1 of the block count; the first @n_exact weights are for exact values. Eight threads per query head.
 * Weights are rounded to binary16 before they are summed, so that they and their sum agree.
 */
DEVICE void softmax(uint32_t from, uint32_t to, uint32_t n_exact, struct shared s)
{
    unsigned row = threadIdx.x / 8, sub = threadIdx.x % 8;
    float largest = LEAST, before = s.max[row], sum = 0, factor;

    for (uint32_t token = sub; token < TOKENS; token += 8)
        if (token >= from && token < to)
            largest = fmaxf(largest, s.scores[token * SCORE_LD + row]);
    largest = fmaxf(max_of(largest, 8), before);
    factor = exp2_fast(before - largest);
    for (uint32_t token = sub; token < TOKENS; token += 8) {
        bool seen = token >= from && token < to;
        uint16_t weight = (uint16_t) pack_halves(seen ? exp2_fast(s.scores[token * SCORE_LD + row] - largest) : 0, 0);

        sum += half_to_float(weight);
        s.scores[token * SCORE_LD + row] = half_to_float(weight);
        s.weights[row * WEIGHT_LD + token] = token < n_exact ? 0 : weight;
    }
    sum = sum_of(sum, 8);
    if (sub == 0) {
        s.max[row] = largest;
        s.sum[row] = s.sum[row] * factor + sum;
        s.factor[row] = factor;
    }
    __syncthreads();
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

DEVICE void scale_tile(float c[HEAD_TILES][4], unsigned lane, struct shared s)
{
    for (unsigned n = 0; n < HEAD_TILES; n++)
        for (unsigned i = 0; i < 4; i++)
            c[n][i] *= s.factor[8 * n + 2 * (lane & 3) + (i & 1)];
}

/* 16 coordinates times the weights of 16 tokens. */
DEVICE void add_tile(float c[HEAD_TILES][4], const uint32_t levels[4], unsigned tokens, unsigned lane, struct shared s)
{
    for (unsigned n = 0; n < HEAD_TILES; n++) {
        const uint16_t *w = s.weights + (8 * n + (lane >> 2)) * WEIGHT_LD + 16 * tokens + 2 * (lane & 3);

        mma_16x8x16(c[n], levels, *(const uint32_t *) w, *(const uint32_t *) (w + 8));
    }
}

/* Coordinates 16 @tile .. of V. */
DEVICE void add_values(const struct plan_table *t, const struct plan_codes *v, const uint8_t *block, uint32_t tile,
                       float c[HEAD_TILES][4], struct shared s)
{
    unsigned lane = threadIdx.x % 32;

    for (unsigned k = 0; k < TOKENS / 16; k++) {
        uint32_t levels[4]; /* coordinates g, g + 8 of tokens 2t, then of 2t + 8 */

        for (unsigned x = 0; x < 4; x++)
            levels[x] = levels_at(t->levels + 9 * 256, v, block, 2 * tile + (x & 1), lane, 2 * k + (x >> 1));
        add_tile(c, levels, k, lane, s);
    }
}

/* Coordinates 16 @tile .. of K, tokens as columns. */
DEVICE void add_keys(const struct plan_table *t, const struct plan_codes *k, const uint8_t *block, uint32_t tile,
                     float c[HEAD_TILES][4], struct shared s)
{
    unsigned lane = threadIdx.x % 32;

    for (unsigned step = 0; step < TOKENS / 16; step++) {
        uint32_t levels[4];

        for (unsigned x = 0; x < 4; x++) {
            unsigned coord = 16 * tile + (lane >> 2) + (x & 1) * 8, token = 16 * step + 2 * (lane & 3) + (x >> 1) * 8;

            levels[x] = key_level(t->levels, k, block, token, coord) | key_level(t->levels, k, block, token + 1, coord) << 16;
        }
        add_tile(c, levels, step, lane, s);
    }
}

/* This warp's tiles of everything that values are decoded from: the predictors' keys one after the other, then V. */
DEVICE void accumulate(const struct plan_attend *a, const struct plan_head *head, const uint8_t *payload,
                       float c[VALUE_TILES][HEAD_TILES][4], struct shared s)
{
    const struct plan_table *t = a->table;
    const struct plan_head *layer = t->heads + a->layer * t->n_kv_heads;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t before = 0; /* tiles of the sources before this one */

    for (uint32_t i = 0; i <= head->n_predictors; i++) {
        const struct plan_head *from = i < head->n_predictors ? layer + head->first_predictor + i : head;
        const struct plan_codes *codes = i < head->n_predictors ? &from->k : &from->v;

        for (uint32_t x = 0; x < VALUE_TILES; x++) {
            uint32_t tile = warp + x * WARPS - before;

            if (warp + x * WARPS < before || tile >= codes->n_half / 2u)
                continue;
            scale_tile(c[x], lane, s);
            if (i < head->n_predictors)
                add_keys(t, codes, payload + from->block, tile, c[x], s);
            else
                add_values(t, codes, payload + from->block, tile, c[x], s);
        }
        before += codes->n_half / 2u;
    }
}

/* Weights of @n exact keys times their values, rows [d] of x - mean. */
DEVICE void add_exact(const struct plan_table *t, const uint16_t *rows, uint32_t n, struct shared s)
{
    for (uint32_t i = threadIdx.x; i < t->group * t->d; i += PLAN_THREADS) {
        uint32_t row = i / t->d, col = i % t->d;
        float sum = s.exact[i] * s.factor[row];

        for (uint32_t token = 0; token < n; token++)
            sum += s.scores[token * SCORE_LD + row] * half_to_float(rows[token * t->d + col]);
        s.exact[i] = sum;
    }
    __syncthreads();
}

/* ---- the kernels --------------------------------------------------------------------------------------------------- */

/* Of the block of keys at @first, those that the query sees: from .. to - 1. */
DEVICE void visible(const struct plan_attend *a, const struct plan_seq *seq, uint32_t first, uint32_t n, uint32_t *from,
                    uint32_t *to)
{
    uint32_t beyond = seq->position + 1, low = a->window > 0 && beyond > a->window ? beyond - a->window : 0;

    *from = low > first ? low - first : 0;
    *to = beyond <= first ? 0 : beyond - first < n ? beyond - first : n;
}

DEVICE void attend_page(const struct plan_attend *a, const struct plan_head *head, const struct plan_seq *seq, uint32_t page,
                        const float *q, float c[VALUE_TILES][HEAD_TILES][4], struct shared s)
{
    const struct plan_table *t = a->table;
    const uint8_t *payload = seq->payloads[page];
    uint32_t first = page * TOKENS, n_sink = page == 0 ? t->n_sink : 0, from, to;

    visible(a, seq, first, TOKENS, &from, &to);
    if (from >= to)
        return;
    turn_queries(a, head, q, (double) seq->position - (double) first, s);
    score_codes(a, head, payload + head->block, s);
    add_mean_scores(t, s);
    if (n_sink > 0)
        score_exact(t, head, (const uint16_t *) (payload + head->sinks_k), n_sink, s);
    softmax(from, to, n_sink, s);
    accumulate(a, head, payload, c, s);
    add_exact(t, (const uint16_t *) (payload + head->sinks_v), n_sink, s); /* rescales also where there is none */
}

DEVICE void attend_tail(const struct plan_attend *a, const struct plan_head *head, const struct plan_seq *seq, uint32_t kv_head,
                        uint32_t at, const float *q, float c[VALUE_TILES][HEAD_TILES][4], struct shared s)
{
    const struct plan_table *t = a->table;
    uint32_t first = seq->n_pages * TOKENS + at, left = seq->n_exact - at, n = left < TOKENS ? left : (uint32_t) TOKENS, from, to;
    size_t rows = ((size_t) kv_head * seq->exact_ld + at) * t->d;

    visible(a, seq, first, n, &from, &to);
    if (from >= to)
        return;
    turn_queries(a, head, q, (double) seq->position - (double) first, s);
    score_exact(t, head, seq->exact_k + rows, n, s);
    softmax(from, to, n, s);
    for (unsigned x = 0; x < VALUE_TILES; x++)
        scale_tile(c[x], threadIdx.x % 32, s);
    add_exact(t, seq->exact_v + rows, n, s);
}

/* Per query head: maximum, sum; then accumulators [columns_max][HEADS]; then exact values [HEADS][d]. */
DEVICE void store_partial(const struct plan_table *t, float c[VALUE_TILES][HEAD_TILES][4], float *ret, struct shared s)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *acc = ret + 2 * HEADS, *exact = acc + t->columns_max * HEADS;

    if (threadIdx.x < HEADS) {
        ret[threadIdx.x] = s.max[threadIdx.x];
        ret[HEADS + threadIdx.x] = s.sum[threadIdx.x];
    }
    for (uint32_t x = 0; x < VALUE_TILES; x++)
        for (unsigned n = 0; n < HEAD_TILES; n++)
            for (unsigned i = 0; i < 4; i++) {
                uint32_t col = 16 * (warp + x * WARPS) + (lane >> 2) + (i >> 1) * 8;

                if (col < t->columns_max)
                    acc[col * HEADS + 8 * n + 2 * (lane & 3) + (i & 1)] = c[x][n][i];
            }
    for (uint32_t i = threadIdx.x; i < t->group * t->d; i += PLAN_THREADS)
        exact[i] = s.exact[i];
}

/* Grid: (KV heads, splits, sequences). Pages of a split are every n_splits-th run of equal length; the last has the tail. */
KERNEL void __launch_bounds__(PLAN_THREADS) kvc_attend(const struct plan_attend *plan)
{
    const struct plan_attend a = *plan;
    const struct plan_table *t = a.table;
    const struct plan_seq *seq = a.seqs + blockIdx.z;
    const struct plan_head *head = t->heads + a.layer * t->n_kv_heads + blockIdx.x;
    const float *q = a.q + ((size_t) blockIdx.z * t->n_kv_heads + blockIdx.x) * t->group * t->d;
    size_t partial = ((size_t) blockIdx.z * t->n_kv_heads + blockIdx.x) * a.n_splits + blockIdx.y;
    uint32_t share = (seq->n_pages + a.n_splits - 1) / a.n_splits, page = blockIdx.y * share;
    struct shared s = carve(dynamic_shared, t);
    float c[VALUE_TILES][HEAD_TILES][4] = { { { 0 } } };

    for (uint32_t i = threadIdx.x; i < HEADS * t->d; i += PLAN_THREADS)
        s.exact[i] = 0;
    if (threadIdx.x < HEADS) {
        s.max[threadIdx.x] = LEAST;
        s.sum[threadIdx.x] = 0;
    }
    __syncthreads();
    for (uint32_t end = page + share; page < end && page < seq->n_pages; page++)
        attend_page(&a, head, seq, page, q, c, s);
    if (blockIdx.y + 1 == a.n_splits)
        for (uint32_t at = 0; at < seq->n_exact; at += TOKENS)
            attend_tail(&a, head, seq, blockIdx.x, at, q, c, s);
    __syncthreads();
    store_partial(t, c, a.partials + partial * PLAN_PARTIAL_FLOATS(t->columns_max, t->d), s);
}

/* Grid: (query heads of a KV head, KV heads, sequences). One output row: splits merged, decoded, divided. */
KERNEL void __launch_bounds__(PLAN_THREADS) kvc_merge(const struct plan_attend *plan)
{
    const struct plan_attend a = *plan;
    const struct plan_table *t = a.table;
    const struct plan_head *head = t->heads + a.layer * t->n_kv_heads + blockIdx.y;
    uint32_t row = blockIdx.x, ld = PLAN_PARTIAL_FLOATS(t->columns_max, t->d);
    size_t kv = (size_t) blockIdx.z * t->n_kv_heads + blockIdx.y;
    const float *partials = a.partials + kv * a.n_splits * ld;
    float *sums = (float *) dynamic_shared; /* [r_in] */
    float largest = LEAST, total = 0;

    for (uint32_t i = 0; i < a.n_splits; i++)
        largest = fmaxf(largest, partials[i * ld + row]);
    for (uint32_t i = 0; i < a.n_splits; i++)
        total += partials[i * ld + HEADS + row] * exp2_fast(partials[i * ld + row] - largest);
    for (uint32_t col = threadIdx.x; col < head->r_in; col += PLAN_THREADS) {
        float sum = 0;

        for (uint32_t i = 0; i < a.n_splits; i++)
            sum += partials[i * ld + 2 * HEADS + col * HEADS + row] * exp2_fast(partials[i * ld + row] - largest);
        sums[col] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < t->d; i += PLAN_THREADS) {
        const float *exact = partials + 2 * HEADS + t->columns_max * HEADS + row * t->d + i;
        float sum = 0;

        for (uint32_t split = 0; split < a.n_splits; split++)
            sum += exact[split * ld] * exp2_fast(partials[split * ld + row] - largest);
        for (uint32_t col = 0; col < head->r_in; col++)
            sum += head->dec_v[i * head->r_in + col] * sums[col];
        a.out[(kv * t->group + row) * t->d + i] = head->mean_v[i] + sum / total;
    }
}
