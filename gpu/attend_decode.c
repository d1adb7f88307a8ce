/* Decode steps in 16-bit integers; see attend_decode.h and decode.h. */
#include "gpu/attend_decode.h"

#include <math.h>
#include <string.h>

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

/* Sums of V have room for the K codes of one head, and pages are read for one head at a time. */
bool decode_takes(const struct table *t)
{
    return t->v_from != PREDICT_LAYER;
}

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
    d->nodes = scratch_take(s, (size_t) FOLD_ROWS_MAX * FOLD_NODES * g->d, sizeof(float));
    d->folded = scratch_take(s, FOLD_ROWS_MAX * FOLD_NODES * rank, sizeof(float));
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

/* Mean squares, over tokens, of keys in each plane: all of it, and about the mean. Levels in units of z have variance
 * 1 or less. */
static void plane_energies(const struct decode *d, float *ret_all, float *ret_centred)
{
    const struct geometry *g = d->rows->geometry;
    const struct codec *k = d->head.k;
    float rms[TABLE_RANK_MAX];

    for (size_t c = 0; c < k->r; c++) {
        unsigned b = k->bits[c / 8];

        rms[c] = b == 0 ? 0 : 1 / d->head.table->levels[SIDE_K][b].step;
    }
    for (size_t i = 0; i < g->n_rot / 2; i++) {
        float centred = 0, mean = 0;

        for (unsigned hi = 0; hi < 2; hi++) {
            size_t row = plane_dim(g, i, hi);
            const float *dec = k->dec + row * k->r_in;

            for (size_t c = 0; c < k->r; c++)
                centred += dec[c] * rms[c] * (dec[c] * rms[c]);
            mean += k->mean[row] * k->mean[row];
        }
        ret_all[i] = centred + mean;
        ret_centred[i] = centred;
    }
}

/*
 * Planes n .. are folded if for no row the error of its scores, sum over them of fold_error |q_i| |k_i|, exceeds 2^-11
 * of the scores' own size about their mean; of 2, if that is larger: softmax sees absolute errors. The query is the one
 * at hand and the keys' energies are the codec's, so nothing has to be known beforehand.
 */
static size_t pick_fast(const struct decode *d)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct geometry *g = d->rows->geometry;
    size_t half = g->n_rot / 2, n_fast = 0;
    float all[GEOMETRY_PLANES_MAX], centred[GEOMETRY_PLANES_MAX];

    if (d->rows->n > FOLD_ROWS_MAX || d->args->exact_rope)
        return g->d / 2;
    plane_energies(d, all, centred);
    for (size_t row = 0; row < d->rows->n; row++) {
        const float *q = d->rows->q + row * g->d;
        float energy[GEOMETRY_PLANES_MAX], square = 0, error = 0, limit;
        size_t n = half;

        for (size_t i = 0; i < half; i++) {
            energy[i] = q[i] * q[i] + q[half + i] * q[half + i];
            square += energy[i] * centred[i] / 2;
        }
        limit = 0x1p-11f * fminf(sqrtf(square), 2);
        while (n > 0 && (error += constants->fold_error[n - 1] * sqrtf(energy[n - 1] * all[n - 1])) <= limit)
            n--;
        n_fast = n > n_fast ? n : n_fast;
    }
    return n_fast;
}

/* The step and the whole numbers of plane @i. */
static void prepare_plane(struct decode *d, size_t i)
{
    const struct geometry *g = d->rows->geometry;
    const struct codec *k = d->head.k;
    float entry = 0, sum = 0, step;

    for (unsigned hi = 0; hi < 2; hi++)
        row_limits(k, plane_dim(g, i, hi), d->unit, d->largest, &entry, &sum);
    step = fmaxf(fmaxf(entry / 32767, sum * 0x1p-30f), 0x1p-100f);
    for (unsigned hi = 0; hi < 2; hi++) {
        size_t row = plane_dim(g, i, hi);

        round_row(k, row, d->unit, step, d->dec + (2 * i + hi) * k->r);
        d->mean[2 * i + hi] = (int32_t) lrintf(k->mean[row] / step);
    }
    d->step[i] = step;
}

/* A row of 64 by token to the order of chunks. */
static void to_chunks(const struct decode *d, const float *from, float *ret)
{
    for (size_t chunk = 0; chunk < 8; chunk++)
        memcpy(ret + 8 * chunk, from + 8u * d->ops->decode->chunks[chunk], 8 * sizeof(float));
}

static void prepare_keys(struct decode *d)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct geometry *g = d->rows->geometry;
    size_t n_rot = g->n_rot / 2 < d->n_fast ? g->n_rot / 2 : d->n_fast;

    column_units(d->head.k, constants->levels[SIDE_K], d->unit, d->largest);
    for (size_t i = 0; i < d->n_fast; i++)
        prepare_plane(d, i);
    for (size_t i = 0; i < n_rot; i++) {
        to_chunks(d, constants->cos + i * CHUNK_TOKENS, d->cos + i * CHUNK_TOKENS);
        to_chunks(d, constants->sin + i * CHUNK_TOKENS, d->sin + i * CHUNK_TOKENS);
    }
    for (size_t j = 0; j < FOLD_NODES; j++)
        to_chunks(d, constants->fold_basis[j], d->basis + j * CHUNK_TOKENS);
    d->keys = (struct key_rows) {
        .n_planes = d->n_fast, .n_rot = n_rot, .r = d->head.k->r, .dec = d->dec, .mean = d->mean, .cos = d->cos,
        .sin = d->sin,
    };
}

void decode_begin(struct decode *d)
{
    d->n_fast = pick_fast(d);
    prepare_keys(d);
    d->sums_cols = (size_t) d->head.v->r_in * DECODE_PARTS;
    memset(d->sums, 0, d->rows->n * d->sums_cols * sizeof(*d->sums));
}

/* ---- a page ------------------------------------------------------------------------------------------------------ */

static void multiply(size_t n, const float *restrict x, const float *restrict y, float *restrict ret)
{
    for (size_t i = 0; i < n; i++)
        ret[i] = x[i] * y[i];
}

/* Turns planes @first .. of @x by the angles of (c, s), in whole vectors where the rotary half is made of them. */
static void turn(const struct decode *d, size_t first, const float *c, const float *s, float *x)
{
    size_t half = d->rows->geometry->n_rot / 2;

    if (half % OPS_LANES == 0) {
        first -= first % OPS_LANES;
        d->ops->rotate(x + first, x + half + first, c + first, s + first, half - first);
        return;
    }
    for (size_t i = first; i < half; i++) {
        float lo = x[i], hi = x[half + i];

        x[i] = lo * c[i] - hi * s[i];
        x[half + i] = hi * c[i] + lo * s[i];
    }
}

/* The slow planes of a query in the page's frame, as a key at each node's offset sees it: turned back by it. */
static void turn_to_nodes(const struct decode *d, float *ret)
{
    const struct page_constants *constants = d->args->layout->constants;
    const struct geometry *g = d->rows->geometry;

    for (size_t j = 0; j < FOLD_NODES; j++, ret += g->d) {
        memcpy(ret, d->turned, g->d * sizeof(*ret));
        turn(d, d->n_fast, constants->fold_cos[j], constants->fold_back_sin[j], ret);
    }
}

/* Rows i .. i + n - 1 to the page's frame: fast planes times K's steps, in the order of planes; slow ones at nodes. */
static void turn_queries(struct decode *d, size_t i, size_t n, const struct rope_phase *frame)
{
    const struct geometry *g = d->rows->geometry;
    size_t half = g->n_rot / 2, fast = d->n_fast, turning = d->keys.n_rot;
    float c[GEOMETRY_PLANES_MAX], s[GEOMETRY_PLANES_MAX];

    for (size_t p = 0; p < half; p++) {
        c[p] = (float) frame->cos[p];
        s[p] = (float) frame->sin[p];
    }
    for (size_t x = 0; x < n; x++) {
        const float *q = d->rows->q + (i + x) * g->d;
        float *ret = d->q + x * 2 * fast;

        memcpy(d->turned, q, g->d * sizeof(*q));
        turn(d, 0, c, s, d->turned);
        multiply(turning, d->turned, d->step, ret);
        multiply(turning, d->turned + half, d->step, ret + fast);
        for (size_t p = turning; p < fast; p++) { /* without rotation: dimensions 2 p, 2 p + 1 */
            ret[p] = d->turned[2 * p] * d->step[p];
            ret[fast + p] = d->turned[2 * p + 1] * d->step[p];
        }
        if (fast < g->d / 2)
            turn_to_nodes(d, d->nodes + x * FOLD_NODES * g->d);
    }
}

/* sum over the slow dimensions of nodes times K's dec, [n * FOLD_NODES, columns] */
static void slow_product(struct decode *d, size_t n, size_t first, size_t end)
{
    const struct codec *k = d->head.k;

    d->ops->matmul(n * FOLD_NODES, k->r, end - first, (struct matrix_in) { d->nodes + first, d->rows->geometry->d },
                   (struct matrix_in) { k->dec + first * k->r_in, k->r_in }, (struct matrix_out) { d->folded, k->r });
}

/* Eight sums side by side, which the compiler makes vectors of. */
static float dot(size_t n, const float *x, const float *y)
{
    float sum[8] = { 0 }, rest = 0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < 8; l++)
            sum[l] += x[i + l] * y[i + l];
    for (; i < n; i++)
        rest += x[i] * y[i];
    for (size_t l = 0; l < 8; l++)
        rest += sum[l];
    return rest;
}

static float slow_mean(const struct decode *d, const float *node)
{
    const struct geometry *g = d->rows->geometry;
    const float *mean = d->head.k->mean;
    size_t lo = d->n_fast, hi = g->n_rot / 2 + d->n_fast;

    return dot(g->n_rot / 2 - lo, node + lo, mean + lo) + dot(g->d - hi, node + hi, mean + hi);
}

/*
 * q' R(t) k over the slow planes is a polynomial in t but for fold_error; with Lagrange's basis
 *     sum_j basis_j(t) (R(-t_j) q)' (mean + dec c) = sum_j basis_j(t) (offset_j + w_j' c),   w_j = dec' R(-t_j) q.
 */
static void fold_slow(struct decode *d, size_t n)
{
    const struct geometry *g = d->rows->geometry;
    const struct codec *k = d->head.k;

    if (d->n_fast == g->d / 2)
        return;
    memset(d->folded, 0, n * FOLD_NODES * k->r * sizeof(*d->folded));
    slow_product(d, n, d->n_fast, g->n_rot / 2);
    slow_product(d, n, g->n_rot / 2 + d->n_fast, g->d);
    for (size_t x = 0; x < n; x++) {
        float offset[FOLD_NODES];

        for (size_t j = 0; j < FOLD_NODES; j++)
            offset[j] = slow_mean(d, d->nodes + (x * FOLD_NODES + j) * g->d);
        d->ops->decode->fold(d->levels, k->r, d->folded + x * FOLD_NODES * k->r, offset, d->unit, d->largest, d->basis,
                             d->scores + x * CHUNK_TOKENS);
    }
}

static void score(struct decode *d, size_t n)
{
    block_scores(d->ops, d->q, n, 2 * d->n_fast, d->kt, d->scores);
    fold_slow(d, n);
    for (size_t x = 0; x < n; x++)
        for (size_t chunk = 0; chunk < 8; chunk++)
            memcpy(d->ordered + x * CHUNK_TOKENS + 8u * d->ops->decode->chunks[chunk],
                   d->scores + x * CHUNK_TOKENS + 8 * chunk, 8 * sizeof(float));
}

/* Scores of exact keys 0 .. n_exact - 1 of the page, over those of the codes in their places. */
static void score_exact(struct decode *d, size_t i, size_t n, const struct rope_phase *frame, size_t n_exact,
                        const float *exact_k)
{
    const struct geometry *g = d->rows->geometry;
    const struct rope_phase *back = &d->args->layout->constants->token_back;
    struct rope_phase phase = *frame;

    for (size_t t = 0; t < n_exact; t++, rope_phase_advance(g, &phase, back))
        for (size_t x = 0; x < n; x++) {
            float sum = 0;

            rope_rotate(g, &phase, d->rows->q + (i + x) * g->d, d->turned);
            for (size_t c = 0; c < g->d; c++)
                sum += d->turned[c] * exact_k[t * g->d + c];
            d->ordered[x * CHUNK_TOKENS + t] = sum;
        }
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
    if (v->n_pred > 0)
        ops->values(&ck, true, n, d->weights, step, sums, d->sums_cols);
    ops->values(&cv, false, n, d->weights, step, sums + (size_t) v->n_pred * DECODE_PARTS, d->sums_cols);
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
    size_t first = page * CHUNK_TOKENS, i = rows_first_seeing(d->rows, first);
    size_t n = rows_end_seeing(d->rows, first + CHUNK_TOKENS - 1) - i;

    d->ops->decode->keys(&codes, &d->keys, d->levels, d->kt);
    turn_queries(d, i, n, frame);
    score(d, n);
    score_exact(d, i, n, frame, n_exact, exact_k);
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
    size_t predicting = (size_t) d->head.v->n_pred;

    for (size_t i = 0; i < d->rows->n; i++) {
        const float *sums = d->sums + i * d->sums_cols;
        float *acc = d->rows->acc + i * d->rows->acc_cols + first_col;

        if (predicting > 0)
            finish_side(d, SIDE_K, d->head.k, sums, acc);
        finish_side(d, SIDE_V, d->head.v, sums + predicting * DECODE_PARTS, acc + predicting);
    }
}
