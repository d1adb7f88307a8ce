/*
 * Attention on packed pages, page by page: codes to levels, levels to keys in the frame of the page,
 * scores, softmax, weights times levels. No decoded key or value is stored longer than its page, and none
 * outside the scratch of the caller.
 *
 *     <R(m) q, R(64 i + t) k> = <R(m - 64 i) q, R(t) k>
 *
 * So keys are rotated by in-page offsets, which are the same for every page,
 * and queries by one phase per page.
 *
 * The accumulator of a row is [exact, d rounded up | packed, r_in]: exact values are summed as vectors (v -
 * mean), packed values in rank space over [c ; c_V]. One product with dec of V at the end makes the output.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "gpu/attend.h"
#include "gpu/cpu/attend_decode.h"
#include "gpu/cpu/attend_rows.h"
#include "gpu/codec.h"
#include "gpu/half_tile.h"

struct attend_packed_work {
    const struct ops *ops;
    const struct attend_args *args;
    struct head_view head;
    struct attend_rows rows;
    struct decode decode;    /* for calls of few rows, if ops has its loops */
    double origin;           /* rows.q are rotated by their positions minus this one */
    struct rope_phase frame; /* R(origin - first position of the block) */
    size_t d_lanes;          /* d rounded up: first column of the packed part of an accumulator */
    const float *cos, *sin;  /* [n_rot/2][64] in-page offsets */
    float *kt;               /* [d][64] keys of the block, rotated by their in-page offsets */
    float *levels_t;         /* [r_K][64] */
    float *values;           /* [64][r_in] levels [c ; c_V] */
    float *exact;            /* [64][d_lanes] v - mean of exact keys, zero beyond d */
    float *vector;           /* [d] one exact row in binary32 */
    float *sinks;            /* [n_sink, d] keys of the sinks, mean included */
    float *q;                /* [ROWS_BATCH, d] queries in the frame of the block */
    float *scores;           /* [ROWS_BATCH, 64] */
    float *sums_t, *out_t;   /* [r_in][LANES], [d][LANES] */
};

static void attend_packed_carve(struct attend_packed_work *w, struct scratch_cursor *s,
                                const struct page_layout *l, size_t n_q)
{
    const struct geometry *g = &l->table->geometry;
    size_t d_lanes = round_lanes(g->d), n_rows = n_q * geometry_group(g), r_in = l->r_in_max;

    w->kt = attend_rows_take(s, g->d * CHUNK_TOKENS, sizeof(float));
    w->levels_t = attend_rows_take(s, d_lanes * CHUNK_TOKENS, sizeof(float));
    w->values = attend_rows_take(s, r_in * CHUNK_TOKENS, sizeof(float));
    w->exact = attend_rows_take(s, d_lanes * CHUNK_TOKENS, sizeof(float));
    w->vector = attend_rows_take(s, g->d, sizeof(float));
    w->sinks = attend_rows_take(s, (size_t) TABLE_SINKS_MAX * g->d, sizeof(float));
    w->q = attend_rows_take(s, (size_t) ROWS_BATCH * g->d, sizeof(float));
    w->scores = attend_rows_take(s, (size_t) ROWS_BATCH * CHUNK_TOKENS, sizeof(float));
    w->sums_t = attend_rows_take(s, r_in * OPS_LANES, sizeof(float));
    w->out_t = attend_rows_take(s, (size_t) g->d * OPS_LANES, sizeof(float));
    w->rows.q = attend_rows_take(s, n_rows * g->d, sizeof(float));
    w->rows.acc = attend_rows_take(s, n_rows * (d_lanes + r_in), sizeof(float));
    w->rows.state = attend_rows_take(s, n_rows, sizeof(struct softmax_row));
    decode_carve(&w->decode, s, l, n_rows);
}

size_t attend_scratch_bytes(const struct page_layout *l, size_t n_q)
{
    struct scratch_cursor s = {0};
    struct attend_packed_work w;

    attend_packed_carve(&w, &s, l, n_q);
    return (s.bytes + 63) & ~(size_t) 63;
}

static size_t attend_packed_block_first(size_t block)
{
    return block * CHUNK_TOKENS;
}

/* ---- keys and values of a block ---- */

static void attend_packed_fill_row(float *row, float x)
{
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        row[t] = x;
}

/* Copies levels [64][8] to eight columns of a wider matrix. */
static void attend_packed_store_columns(const float *levels, float *ret, size_t ld)
{
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        memcpy(ret + t * ld, levels + 8 * t, 8 * sizeof(*ret));
}

static const uint8_t *attend_packed_head_block(const struct attend_packed_work *w, const uint8_t *payload,
                                               uint32_t head)
{
    const struct page_layout *l = w->args->layout;

    return payload + page_block_off(l, w->args->layer, head - l->shard.first_head);
}

/* Levels of one half-tile of K, as columns: ret [8][64]. */
static void attend_packed_key_columns(struct attend_packed_work *w, const struct levels *l, unsigned b,
                                      const uint8_t codes[HALF_TILE_CODES], float *ret)
{
    uint8_t rotated[HALF_TILE_CODES], columns[8][CHUNK_TOKENS];

    half_tile_transpose(codes, rotated);
    for (size_t j = 0; j < 8; j++)
        for (size_t c = 0; c < 8; c++)
            memcpy(&columns[c][8 * j], rotated + 64 * j + 8 * c, 8);
    w->ops->lookup(l, levels_index_bits(l, b), columns[0], HALF_TILE_CODES, ret);
}

/* Unpacks K of one head to @levels_t [r_K][64] and to @values, its
 * columns of w->values. Either may be NULL. */
static void attend_packed_unpack_head_keys(struct attend_packed_work *w, const uint8_t *at,
                                           const struct codec *k, float *levels_t, float *values)
{
    uint8_t codes[HALF_TILE_CODES];
    float levels[HALF_TILE_CODES];

    for (size_t half = 0; half < k->n_half; half++) {
        unsigned b = k->bits[half];
        const struct levels *l = &w->head.table->levels[SIDE_K][b];
        float *ret = levels_t ? levels_t + half * HALF_TILE_CODES : NULL;

        if (b == 0) {
            memset(levels, 0, sizeof(levels));
            if (ret)
                memset(ret, 0, sizeof(levels));
        } else {
            half_tile_unpack(at, b, codes);
            at += half_tile_bytes(b);
            if (l->state_bits > 0)
                half_tile_to_states(b, l->state_bits, SIDE_K, codes);
            if (values)
                w->ops->lookup(l, levels_index_bits(l, b), codes, HALF_TILE_CODES, levels);
            if (ret)
                attend_packed_key_columns(w, l, b, codes, ret);
        }

        if (values)
            attend_packed_store_columns(levels, values + 8 * half, w->head.v->r_in);
    }
}

/* Unpacks the head's own keys to levels_t, and the keys that its values are predicted from to the first
 * columns of values. */
static void attend_packed_unpack_keys(struct attend_packed_work *w, const uint8_t *payload)
{
    struct head_run run = table_predictors(w->head.table, w->head.head);
    float *values = w->values;

    if (run.n == 0)
        attend_packed_unpack_head_keys(w, attend_packed_head_block(w, payload, w->head.head), w->head.k,
                                       w->levels_t, NULL);
    for (uint32_t head = run.first; head < run.first + run.n; head++) {
        const struct codec *k = table_codec(w->head.table, w->head.layer, head, SIDE_K);

        attend_packed_unpack_head_keys(w, attend_packed_head_block(w, payload, head), k,
                                       head == w->head.head ? w->levels_t : NULL, values);
        values += k->r;
    }
}

static void attend_packed_unpack_values(struct attend_packed_work *w, const uint8_t *payload)
{
    const struct codec *v = w->head.v;
    const uint8_t *at = attend_packed_head_block(w, payload, w->head.head) + page_v_off(w->head.k);
    uint8_t codes[HALF_TILE_CODES];
    float levels[HALF_TILE_CODES];

    for (size_t half = 0; half < v->n_half; half++) {
        unsigned b = v->bits[half];
        const struct levels *l = &w->head.table->levels[SIDE_V][b];

        if (b == 0) {
            memset(levels, 0, sizeof(levels));
        } else {
            half_tile_unpack(at, b, codes);
            at += half_tile_bytes(b);
            if (l->state_bits > 0)
                half_tile_to_states(b, l->state_bits, SIDE_V, codes);
            half_tile_transpose(codes, codes);
            w->ops->lookup(l, levels_index_bits(l, b), codes, HALF_TILE_CODES, levels);
        }

        attend_packed_store_columns(levels, w->values + v->n_pred + 8 * half, v->r_in);
    }
}

/* Loads row @t of exact from binary16 of any alignment. */
static void attend_packed_load_exact_value(struct attend_packed_work *w, const void *v, size_t t)
{
    size_t d = w->rows.geometry->d;

    w->ops->from_half(v, d, w->exact + t * w->d_lanes);
    memset(w->exact + t * w->d_lanes + d, 0, (w->d_lanes - d) * sizeof(float));
}

/* Loads @n exact rows into columns 0 .. n - 1 of kt, over the decoded keys, and into exact. Rows are
 * binary16 of x - mean, of any alignment. */
static void attend_packed_load_exact(struct attend_packed_work *w, const void *k, const void *v,
                                     size_t stride_bytes, size_t n)
{
    size_t d = w->rows.geometry->d;

    for (size_t t = 0; t < n; t++) {
        w->ops->from_half((const char *) k + t * stride_bytes, d, w->vector);
        for (size_t i = 0; i < d; i++)
            w->kt[i * CHUNK_TOKENS + t] = w->head.k->mean[i] + w->vector[i];
        attend_packed_load_exact_value(w, (const char *) v + t * stride_bytes, t);
    }
}

static void attend_packed_rotate_keys(struct attend_packed_work *w)
{
    size_t half = (size_t) w->rows.geometry->n_rot / 2 * CHUNK_TOKENS;

    w->ops->rotate(w->kt, w->kt + half, w->cos, w->sin, half);
}

/* Returns the number of exact keys at the start of page @page: the sinks. */
static size_t attend_packed_load_page(struct attend_packed_work *w, size_t page)
{
    const struct attend_args *a = w->args;
    const struct page_layout *l = a->layout;
    const struct codec *k = w->head.k;
    const uint8_t *payload = a->payloads[page];
    size_t d = w->rows.geometry->d, n_exact = page == 0 ? a->n_sink : 0;

    attend_packed_unpack_keys(w, payload);
    attend_packed_unpack_values(w, payload);
    for (size_t i = 0; i < d; i++)
        attend_packed_fill_row(w->kt + i * CHUNK_TOKENS, k->mean[i]);
    w->ops->matmul(d, CHUNK_TOKENS, k->r, (struct matrix_in){k->dec, k->r_in},
                   (struct matrix_in){w->levels_t, CHUNK_TOKENS}, (struct matrix_out){w->kt, CHUNK_TOKENS});
    if (n_exact > 0)
        attend_packed_load_exact(w, payload + page_sink_off(l, a->layer, a->head, SIDE_K),
                                 payload + page_sink_off(l, a->layer, a->head, SIDE_V), d * sizeof(uint16_t),
                                 n_exact);
    attend_packed_rotate_keys(w);
    return n_exact;
}

/* Returns the number of keys in the exact block @i, counted from exact_first. */
static size_t attend_packed_load_exact_block(struct attend_packed_work *w, size_t i)
{
    const struct attend_args *a = w->args;
    size_t from = i * CHUNK_TOKENS, left = a->n_exact - from;
    size_t n = left < CHUNK_TOKENS ? left : CHUNK_TOKENS;

    if (n < CHUNK_TOKENS) /* columns without a key are multiplied too */
        memset(w->kt, 0, w->rows.geometry->d * CHUNK_TOKENS * sizeof(float));
    attend_packed_load_exact(w, a->exact_k + from * a->exact_stride, a->exact_v + from * a->exact_stride,
                             a->exact_stride * sizeof(uint16_t), n);
    attend_packed_rotate_keys(w);
    return n;
}

/* ---- rows over a block ---- */

/* Adds the weights of @n rows from row @i, in @weights, times the values of the block: its first @n_exact
 * keys are exact, the rest packed. */
static void attend_packed_accumulate(struct attend_packed_work *w, size_t i, size_t n, const float *weights,
                                     size_t n_exact, size_t n_keys)
{
    size_t r_in = w->head.v->r_in, cols = w->rows.acc_cols;
    float *acc = w->rows.acc + i * cols;

    w->ops->matmul(n, w->d_lanes, n_exact, (struct matrix_in){weights, CHUNK_TOKENS},
                   (struct matrix_in){w->exact, w->d_lanes}, (struct matrix_out){acc, cols});
    w->ops->matmul(n, r_in, n_keys - n_exact, (struct matrix_in){weights + n_exact, CHUNK_TOKENS},
                   (struct matrix_in){w->values + n_exact * r_in, r_in},
                   (struct matrix_out){acc + w->d_lanes, cols});
}

/* Processes the block at position @first for all rows that see any of it, then
 * rotates to the frame of the next block. */
static void attend_packed_block(struct attend_packed_work *w, size_t first, size_t n_exact, size_t n_keys)
{
    const struct geometry *g = w->rows.geometry;

    size_t end = rows_end_seeing(&w->rows, first + n_keys - 1);

    if (w->args->repeatable) /* not advanced from the block before, which other queries may not see */
        rope_phase_at(g, w->origin - (double) first, &w->frame);
    for (size_t i = rows_first_seeing(&w->rows, first); i < end; i += ROWS_BATCH) {
        size_t n = end - i < ROWS_BATCH ? end - i : ROWS_BATCH, needing;
        float weights[ROWS_BATCH];

        for (size_t x = 0; x < n; x++)
            rope_rotate(g, &w->frame, w->rows.q + (i + x) * g->d, w->q + x * g->d);
        attend_rows_block_scores(w->ops, w->q, n, g->d, w->kt, w->scores);
        rows_softmax(w->ops, &w->rows, i, n, first, n_keys, w->scores, weights);
        n = rows_needing_values(&w->rows, i, n, weights, &needing);
        if (n > 0)
            attend_packed_accumulate(w, i + needing, n, w->scores + needing * CHUNK_TOKENS, n_exact, n_keys);
    }

    rope_phase_advance(g, &w->frame, &w->args->layout->constants->page_back);
}

/* Processes page @page for all rows that see any of it, in a call of few rows. */
static void attend_packed_decode_step_page(struct attend_packed_work *w, size_t page)
{
    const struct attend_args *a = w->args;
    const uint8_t *payload = a->payloads[page];
    size_t d = w->rows.geometry->d, n_exact = page == 0 ? a->n_sink : 0;

    for (size_t t = 0; t < n_exact; t++) {
        size_t row = t * d * sizeof(uint16_t);

        w->ops->from_half(payload + page_sink_off(a->layout, a->layer, a->head, SIDE_K) + row, d,
                          w->sinks + t * d);
        for (size_t i = 0; i < d; i++)
            w->sinks[t * d + i] += w->head.k->mean[i];
        attend_packed_load_exact_value(w, payload + page_sink_off(a->layout, a->layer, a->head, SIDE_V) + row,
                                       t);
    }

    decode_page(&w->decode, page, n_exact, w->sinks, w->exact, w->d_lanes);
}

/* o = mean_V + (exact sums + dec_V packed sums) / sum of weights, for @n <= OPS_LANES rows from row @i. */
static void attend_packed_store_rows(struct attend_packed_work *w, size_t i, size_t n)
{
    const struct codec *v = w->head.v;
    size_t d = w->rows.geometry->d, cols = w->rows.acc_cols, group = w->rows.group;

    memset(w->sums_t, 0, (size_t) v->r_in * OPS_LANES * sizeof(float));
    for (size_t x = 0; x < n; x++)
        for (size_t c = 0; c < v->r_in; c++)
            w->sums_t[c * OPS_LANES + x] = w->rows.acc[(i + x) * cols + w->d_lanes + c];
    memset(w->out_t, 0, d * OPS_LANES * sizeof(float));
    w->ops->matmul(d, OPS_LANES, v->r_in, (struct matrix_in){v->dec, v->r_in},
                   (struct matrix_in){w->sums_t, OPS_LANES}, (struct matrix_out){w->out_t, OPS_LANES});
    for (size_t x = 0; x < n; x++) {
        const float *exact = w->rows.acc + (i + x) * cols;
        float *out = w->args->out + (i + x) / group * w->args->out_stride + (i + x) % group * d;
        float norm = 1 / w->rows.state[i + x].sum;

        for (size_t c = 0; c < d; c++)
            out[c] = v->mean[c] + (exact[c] + w->out_t[c * OPS_LANES + x]) * norm;
    }
}

/* ---- pages and scratch ---- */

/* Pages of which the last query sees at least one token. */
static size_t attend_packed_chunks_seen(const struct attend_args *a)
{
    size_t seen = (a->q_first + a->n_q + CHUNK_TOKENS - 1) / CHUNK_TOKENS;

    return seen < a->n_pages ? seen : a->n_pages;
}

static void attend_packed_check_args(const struct attend_args *a)
{
    assert(a->layer < a->layout->table->geometry.n_layers && a->head < a->layout->shard.n_heads);
    assert(a->n_pages == 0 || a->n_sink <= a->layout->table->n_sink);
    assert(a->exact_first == a->n_pages * CHUNK_TOKENS);
    assert(a->q_first + a->n_q <= a->exact_first + a->n_exact);
    assert(((uintptr_t) a->scratch & 63) == 0);
    (void) a;
}

/* Whether the call takes the loops in whole numbers. */
static bool attend_packed_has_few_rows(const struct attend_packed_work *w)
{
    return w->ops->decode && w->rows.n <= DECODE_ROWS_MAX && !w->args->repeatable;
}

/* Pages of the share that any row sees, with the loops for few rows or for many. */
static void attend_pages(struct attend_packed_work *w, size_t first_page, size_t end_page)
{
    const struct attend_args *a = w->args;
    size_t lowest = rows_lowest_seen(&w->rows) / CHUNK_TOKENS, seen = attend_packed_chunks_seen(a);

    first_page = first_page > lowest ? first_page : lowest;
    end_page = end_page < seen ? end_page : seen;
    rope_phase_at(w->rows.geometry, w->origin - (double) attend_packed_block_first(first_page), &w->frame);
    if (attend_packed_has_few_rows(w)) {
        decode_begin(&w->decode, first_page, &w->frame);
        for (size_t page = first_page; page < end_page; page++)
            attend_packed_decode_step_page(w, page);
        decode_finish(&w->decode, w->d_lanes);
        return;
    }

    for (size_t page = first_page; page < end_page; page++) {
        size_t n_exact = attend_packed_load_page(w, page);

        attend_packed_block(w, attend_packed_block_first(page), n_exact, CHUNK_TOKENS);
    }
}

static void attend_packed_exact(struct attend_packed_work *w)
{
    const struct attend_args *a = w->args;
    size_t lowest = rows_lowest_seen(&w->rows), end = a->q_first + a->n_q;
    size_t i = lowest > a->exact_first ? (lowest - a->exact_first) / CHUNK_TOKENS : 0;

    rope_phase_at(w->rows.geometry, w->origin - (double) (a->exact_first + attend_packed_block_first(i)),
                  &w->frame);
    for (; attend_packed_block_first(i) < a->n_exact && a->exact_first + attend_packed_block_first(i) < end;
         i++) {
        size_t n = attend_packed_load_exact_block(w, i);

        attend_packed_block(w, a->exact_first + attend_packed_block_first(i), n, n);
    }
}

/* Divides the scratch. */
static void attend_packed_work_init(struct attend_packed_work *w, const struct attend_args *a,
                                    const struct ops *ops)
{
    const struct table *t = a->layout->table;
    struct scratch_cursor scratch = {.base = a->scratch};

    attend_packed_check_args(a);
    *w = (struct attend_packed_work){
        .ops = ops, .args = a, .head = head_view(t, a->layer, a->layout->shard.first_head + a->head)};
    attend_packed_carve(w, &scratch, a->layout, a->n_q);
    w->d_lanes = round_lanes(t->geometry.d);
    w->rows.geometry = &t->geometry;
    w->rows.group = geometry_group(&t->geometry);
    w->rows.n = a->n_q * w->rows.group;
    w->rows.first = a->q_first;
    w->rows.window = a->window;
    w->rows.direct_phases = a->repeatable;
    w->rows.all_values = a->all_values || a->repeatable; /* skipping depends on other rows and on shares */
    w->origin = (double) (a->repeatable ? a->exact_first : a->q_first);
    w->rows.acc_cols = w->d_lanes + w->head.v->r_in;
    w->decode.ops = ops;
    w->decode.args = a;
    w->decode.head = w->head;
    w->decode.rows = &w->rows;
    w->cos = a->layout->constants->cos;
    w->sin = a->layout->constants->sin;
}

static void attend_packed_accumulate_share(struct attend_packed_work *w, size_t first_page, size_t end_page,
                                           bool exact)
{
    rows_load(&w->rows, w->args->q, w->args->q_stride, w->origin);
    attend_pages(w, first_page, end_page);
    if (exact)
        attend_packed_exact(w);
}

static void attend_packed_store_all(struct attend_packed_work *w)
{
    for (size_t i = 0; i < w->rows.n; i += OPS_LANES)
        attend_packed_store_rows(w, i, w->rows.n - i < OPS_LANES ? w->rows.n - i : OPS_LANES);
}

size_t attend_skips_with(const struct attend_args *a, const struct ops *ops)
{
    struct attend_packed_work w;

    attend_packed_work_init(&w, a, ops);
    attend_packed_accumulate_share(&w, 0, a->n_pages, true);
    attend_packed_store_all(&w);
    return w.rows.n_skipped;
}

void attend_with(const struct attend_args *a, const struct ops *ops)
{
    (void) attend_skips_with(a, ops);
}

/* ---- shares ---- */

/* A row of a partial result: two numbers, then the accumulators. */
enum { PARTIAL_MAX, PARTIAL_SUM, PARTIAL_ACC };

size_t attend_partial_floats(const struct page_layout *l, size_t n_q)
{
    const struct geometry *g = &l->table->geometry;

    return n_q * geometry_group(g) * (PARTIAL_ACC + round_lanes(g->d) + l->r_in_max);
}

void attend_share_with(const struct attend_args *a, const struct ops *ops, size_t first_page, size_t end_page,
                       bool exact, float *ret_partial)
{
    struct attend_packed_work w;

    attend_packed_work_init(&w, a, ops);
    attend_packed_accumulate_share(&w, first_page, end_page, exact);
    for (size_t i = 0; i < w.rows.n; i++, ret_partial += PARTIAL_ACC + w.rows.acc_cols) {
        ret_partial[PARTIAL_MAX] = w.rows.state[i].max;
        ret_partial[PARTIAL_SUM] = w.rows.state[i].sum;
        memcpy(ret_partial + PARTIAL_ACC, w.rows.acc + i * w.rows.acc_cols, w.rows.acc_cols * sizeof(float));
    }
}

/* Adds a share to the sums of a row; each is multiplied by exp(its maximum - the larger of both maxima). */
static void attend_packed_merge_row(struct softmax_row *state, float *acc, size_t cols, const float *partial)
{
    float max = fmaxf(state->max, partial[PARTIAL_MAX]), old, new;

    if (partial[PARTIAL_SUM] == 0) /* the share saw no key: its maximum is -infinity */
        return;
    old = state->sum == 0 ? 0 : expf(state->max - max);
    new = expf(partial[PARTIAL_MAX] - max);
    *state = (struct softmax_row){.max = max, .sum = state->sum * old + partial[PARTIAL_SUM] * new};
    for (size_t c = 0; c < cols; c++)
        acc[c] = acc[c] * old + partial[PARTIAL_ACC + c] * new;
}

void attend_merge_with(const struct attend_args *a, const struct ops *ops, const float *partials,
                       size_t n_shares)
{
    size_t ld = attend_partial_floats(a->layout, a->n_q);
    struct attend_packed_work w;

    attend_packed_work_init(&w, a, ops);
    for (size_t i = 0; i < w.rows.n; i++) {
        float *acc = w.rows.acc + i * w.rows.acc_cols;

        w.rows.state[i] = (struct softmax_row){.max = -INFINITY, .sum = 0};
        memset(acc, 0, w.rows.acc_cols * sizeof(*acc));
        for (size_t s = 0; s < n_shares; s++)
            attend_packed_merge_row(&w.rows.state[i], acc, w.rows.acc_cols,
                                    partials + s * ld + i * (PARTIAL_ACC + w.rows.acc_cols));
        assert(w.rows.state[i].sum > 0);
    }

    attend_packed_store_all(&w);
}

void attend_share(const struct attend_args *a, size_t first_page, size_t end_page, bool exact,
                  float *ret_partial)
{
    attend_share_with(a, ops_best(), first_page, end_page, exact, ret_partial);
}

void attend_merge(const struct attend_args *a, const float *partials, size_t n_shares)
{
    attend_merge_with(a, ops_best(), partials, n_shares);
}

void attend(const struct attend_args *a)
{
    attend_with(a, ops_best());
}

void attend_folding_with(const struct attend_args *a, const struct ops *ops, struct attend_folding *ret)
{
    struct attend_packed_work w;

    attend_packed_work_init(&w, a, ops);
    *ret = (struct attend_folding){.planes = w.rows.geometry->d / 2, .formed = w.rows.geometry->d / 2};
    if (!attend_packed_has_few_rows(&w))
        return;
    rows_load(&w.rows, a->q, a->q_stride, (double) a->q_first);
    rope_phase_at(w.rows.geometry, (double) a->q_first, &w.frame);
    decode_begin(&w.decode, 0, &w.frame);
    ret->formed = w.decode.n_fast;
    ret->bound = w.decode.fold_bound;
}

const char *attend_kernel_name(void)
{
    return ops_best()->name;
}
