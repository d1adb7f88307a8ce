/* Decode steps in 16-bit integers; see attend_decode.h and decode.h. */
#include "gpu/attend_decode.h"

#include <math.h>
#include <string.h>

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

void decode_carve(struct decode *d, struct scratch_cursor *s, const struct geometry *g)
{
    size_t rank = round_lanes(g->d), n_angles = (size_t) g->n_rot / 2 * CHUNK_TOKENS;

    d->step = scratch_take(s, g->d / 2, sizeof(float));
    d->dec = scratch_take(s, g->d * rank, sizeof(int16_t));
    d->mean = scratch_take(s, g->d, sizeof(int32_t));
    d->cos = scratch_take(s, n_angles, sizeof(float));
    d->sin = scratch_take(s, n_angles, sizeof(float));
    d->levels = scratch_take(s, rank * CHUNK_TOKENS, sizeof(int16_t));
    d->kt = scratch_take(s, (size_t) g->d * CHUNK_TOKENS, sizeof(float));
    d->q = scratch_take(s, (size_t) DECODE_ROWS_MAX * g->d, sizeof(float));
    d->turned = scratch_take(s, g->d, sizeof(float));
    d->scores = scratch_take(s, (size_t) DECODE_ROWS_MAX * CHUNK_TOKENS, sizeof(float));
    d->ordered = scratch_take(s, (size_t) DECODE_ROWS_MAX * CHUNK_TOKENS, sizeof(float));
    d->weights = scratch_take(s, (size_t) DECODE_ROWS_MAX * CHUNK_TOKENS, sizeof(int16_t));
    d->sums = scratch_take(s, DECODE_ROWS_MAX * 2 * rank * DECODE_PARTS, sizeof(float));
}

/* The two dimensions of plane @i; those without rotation pair up at the end. */
static size_t plane_dim(const struct geometry *g, size_t i, unsigned hi)
{
    size_t n_rot = g->n_rot / 2;

    if (i < n_rot)
        return hi ? n_rot + i : i;
    return 2 * i + hi;
}

/* What a level of each column counts in dec's unit, and how large it gets. */
static void column_units(const struct codec *k, const struct level_table *levels, float *ret_unit, float *ret_largest)
{
    for (size_t half = 0; half < k->n_half; half++) {
        unsigned b = k->bits[half];
        const struct level_table *t = &levels[b];
        float low = fabsf((float) t->value[0]), high = fabsf((float) t->value[(1u << b) - 1]);

        for (size_t c = 8 * half; c < 8 * half + 8; c++) {
            ret_unit[c] = t->unit;
            ret_largest[c] = b == 0 ? 0 : fmaxf(low, high);
        }
    }
}

/*
 * A row's sum is at most |mean| + sum_c largest_c |dec_c|, in steps. The step keeps entries within 16 bits and this
 * bound below 2^30; the other half of the range is for the rounding of entries, half a step each, which adds
 * 256 * LEVEL_WHOLE_MAX / 2 < 2^20.
 */
static void row_limits(const struct codec *k, size_t row, const float *unit, const float *largest, float *entry,
                       float *sum)
{
    const float *dec = k->dec + row * k->r_in;
    float top = *entry, total = fabsf(k->mean[row]);

    for (size_t c = 0; c < k->r; c++) {
        float x = fabsf(dec[c] * unit[c]);

        top = x > top ? x : top;
        total += x * largest[c];
    }
    *entry = top;
    *sum = fmaxf(*sum, total);
}

static void round_row(const struct codec *k, size_t row, const float *unit, float step, int16_t *ret)
{
    const float *dec = k->dec + row * k->r_in;
    float per = 1 / step;

    for (size_t c = 0; c < k->r; c++) {
        float x = dec[c] * unit[c] * per;

        ret[c] = (int16_t) (int32_t) (x + copysignf(0.5f, x));
    }
}

static void prepare_keys(struct decode *d)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct geometry *g = d->rows->geometry;
    const struct codec *k = d->head.k;
    float unit[TABLE_RANK_MAX], largest[TABLE_RANK_MAX];

    column_units(k, constants->levels[SIDE_K], unit, largest);
    for (size_t i = 0; i < g->d / 2; i++) {
        float entry = 0, sum = 0, step;

        for (unsigned hi = 0; hi < 2; hi++)
            row_limits(k, plane_dim(g, i, hi), unit, largest, &entry, &sum);
        step = fmaxf(fmaxf(entry / 32767, sum * 0x1p-30f), 0x1p-100f);
        for (unsigned hi = 0; hi < 2; hi++) {
            size_t row = plane_dim(g, i, hi);

            round_row(k, row, unit, step, d->dec + (2 * i + hi) * k->r);
            d->mean[2 * i + hi] = (int32_t) lrintf(k->mean[row] / step);
        }
        d->step[i] = step;
    }
    for (size_t i = 0; i < g->n_rot / 2; i++)
        for (size_t chunk = 0; chunk < 8; chunk++) {
            size_t to = i * CHUNK_TOKENS + 8 * chunk, from = i * CHUNK_TOKENS + 8u * d->ops->decode->chunks[chunk];

            memcpy(d->cos + to, constants->cos + from, 8 * sizeof(float));
            memcpy(d->sin + to, constants->sin + from, 8 * sizeof(float));
        }
    d->keys = (struct key_rows) {
        .n_planes = g->d / 2, .n_rot = g->n_rot / 2, .r = k->r, .dec = d->dec, .mean = d->mean,
        .cos = d->cos, .sin = d->sin,
    };
}

void decode_begin(struct decode *d)
{
    prepare_keys(d);
    d->sums_cols = (size_t) d->head.v->r_in * DECODE_PARTS;
    memset(d->sums, 0, d->rows->n * d->sums_cols * sizeof(*d->sums));
}

/* ---- a page ------------------------------------------------------------------------------------------------------ */

/* Puts key @t over its column of kt. */
static void put_key(struct decode *d, size_t t, const float *key)
{
    const struct geometry *g = d->rows->geometry;
    const struct page_constants *constants = d->args->layout->constants;
    size_t column = t % 8;

    for (size_t chunk = 0; chunk < 8; chunk++)
        if (d->ops->decode->chunks[chunk] == t / 8)
            column += 8 * chunk;
    for (size_t i = 0; i < d->keys.n_planes; i++) {
        float lo = key[plane_dim(g, i, 0)] / d->step[i], hi = key[plane_dim(g, i, 1)] / d->step[i];
        float c = 1, s = 0;

        if (i < d->keys.n_rot) {
            c = constants->cos[i * CHUNK_TOKENS + t];
            s = constants->sin[i * CHUNK_TOKENS + t];
        }
        d->kt[2 * i * CHUNK_TOKENS + column] = lo * c - hi * s;
        d->kt[(2 * i + 1) * CHUNK_TOKENS + column] = hi * c + lo * s;
    }
}

/* Rows i .. i + n - 1 to the page's frame, times K's steps, in the order of planes. */
static void turn_queries(struct decode *d, size_t i, size_t n, const struct rope_phase *frame)
{
    const struct geometry *g = d->rows->geometry;

    for (size_t x = 0; x < n; x++) {
        float *ret = d->q + x * g->d;

        rope_rotate(g, frame, d->rows->q + (i + x) * g->d, d->turned);
        for (size_t p = 0; p < d->keys.n_planes; p++) {
            ret[2 * p] = d->turned[plane_dim(g, p, 0)] * d->step[p];
            ret[2 * p + 1] = d->turned[plane_dim(g, p, 1)] * d->step[p];
        }
    }
}

static void score(struct decode *d, size_t n)
{
    block_scores(d->ops, d->q, n, d->rows->geometry->d, d->kt, d->scores);
    for (size_t x = 0; x < n; x++)
        for (size_t chunk = 0; chunk < 8; chunk++)
            memcpy(d->ordered + x * CHUNK_TOKENS + 8u * d->ops->decode->chunks[chunk],
                   d->scores + x * CHUNK_TOKENS + 8 * chunk, 8 * sizeof(float));
}

static struct coded coded_side(const struct decode *d, enum side side, const uint8_t *at)
{
    const struct codec *c = side == SIDE_K ? d->head.k : d->head.v;

    return (struct coded) { at, c->bits, c->n_half, d->args->layout->constants->levels[side] };
}

/* Weights of rows i .. i + n - 1 times what the page holds; its first @n_exact codes do not count. */
static void add_values(struct decode *d, size_t i, size_t n, size_t n_exact, const uint8_t *block)
{
    const struct decode_ops *ops = d->ops->decode;
    const struct codec *k = d->head.k, *v = d->head.v;
    struct coded ck = coded_side(d, SIDE_K, block), cv = coded_side(d, SIDE_V, block + page_v_off(k));
    float *sums = d->sums + i * d->sums_cols;
    float step[DECODE_ROWS_MAX];

    for (size_t x = 0; x < n; x++) {
        memset(d->ordered + x * CHUNK_TOKENS, 0, n_exact * sizeof(float));
        step[x] = ops->weights(d->ordered + x * CHUNK_TOKENS, d->weights + x * CHUNK_TOKENS);
    }
    if (v->r_in > v->r)
        ops->values(&ck, true, n, d->weights, step, sums, d->sums_cols);
    ops->values(&cv, false, n, d->weights, step, sums + (size_t) (v->r_in - v->r) * DECODE_PARTS, d->sums_cols);
}

/* rows_softmax() rescales accumulators when a row's maximum grows; sums follow. */
static void softmax(struct decode *d, size_t i, size_t n, size_t first)
{
    for (size_t x = 0; x < n; x++) {
        float *sums = d->sums + (i + x) * d->sums_cols;
        float factor = rows_softmax(d->ops, d->rows, i + x, 1, first, CHUNK_TOKENS, d->ordered + x * CHUNK_TOKENS);

        if (factor == 1)
            continue;
        for (size_t c = 0; c < d->sums_cols; c++)
            sums[c] *= factor;
    }
}

void decode_page(struct decode *d, size_t page, const struct rope_phase *frame, size_t n_exact, const float *exact_k,
                 const float *exact_v, size_t exact_ld)
{
    const struct attend_args *a = d->args;
    const uint8_t *block = a->payloads[page] + page_block_off(a->layout, a->layer, a->head);
    struct coded codes = coded_side(d, SIDE_K, block);
    size_t first = page * CHUNK_TOKENS, i = rows_first_seeing(d->rows, first), n = d->rows->n - i;

    d->ops->decode->keys(&codes, &d->keys, d->levels, d->kt);
    for (size_t t = 0; t < n_exact; t++)
        put_key(d, t, exact_k + t * d->rows->geometry->d);
    turn_queries(d, i, n, frame);
    score(d, n);
    softmax(d, i, n, first);
    d->ops->matmul(n, round_lanes(d->rows->geometry->d), n_exact, (struct matrix_in) { d->ordered, CHUNK_TOKENS },
                   (struct matrix_in) { exact_v, exact_ld },
                   (struct matrix_out) { d->rows->acc + i * d->rows->acc_cols, d->rows->acc_cols });
    add_values(d, i, n, n_exact, block);
}

static void finish_side(const struct decode *d, enum side side, const struct codec *c, const float *sums, float *acc)
{
    const struct level_table *levels = d->args->layout->constants->levels[side];

    for (size_t col = 0; col < c->r; col++) {
        const float *part = sums + col * DECODE_PARTS;

        acc[col] += ((part[0] + part[1]) + (part[2] + part[3])) * levels[c->bits[col / 8]].unit;
    }
}

void decode_finish(struct decode *d, size_t first_col)
{
    size_t predicting = (size_t) (d->head.v->r_in - d->head.v->r);

    for (size_t i = 0; i < d->rows->n; i++) {
        const float *sums = d->sums + i * d->sums_cols;
        float *acc = d->rows->acc + i * d->rows->acc_cols + first_col;

        if (predicting > 0)
            finish_side(d, SIDE_K, d->head.k, sums, acc);
        finish_side(d, SIDE_V, d->head.v, sums + predicting * DECODE_PARTS, acc + predicting);
    }
}
