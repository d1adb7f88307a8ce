/*
 * The oracle of attention; see attend_oracle.h. The tolerances, with
 *
 *     u = 2^-24
 *     S = scale |q| (|mean| + |k - mean|)
 *     D = scale |q| |k - mean| / sqrt(d)    size of a score about the mean, for independent errors
 *
 * Binary32. A score is a sum of d products. Products of independent numbers have partial sums of at most
 * about S / sqrt(d), each rounded by u of itself, d of them:
 *
 *     u S      the products
 *   + u S      the key's own coordinates, which are such sums over the rank
 *   + 2 u S    rotating query and key
 *
 * An error e of all scores of a row moves its weights by e relative to each other, so the output by at most
 * 2 e of the size of the values: 8 u S. The sums over weights and the product with dec take 16 u.
 *
 * Whole numbers (gpu/cpu/decode.h) add independent errors, so their squares are added. Scores: entries of
 * dec, and of nodes of folded planes, are off by at most half a step, 1 / sqrt(3) of that in the mean. The
 * largest entry of a row is narrow_max steps, and 3 times the mean size for numbers like these:
 *
 *     KEY_ERROR = 3 / (2 sqrt(3) narrow_max)    of its size about the mean: each coordinate of a key
 *     KEY_ERROR D                               a score
 *     2^-10                                     folding, and levels of five bits and more
 *     p e |v|                                   the output, by an error e of one score
 *
 * Weights are rounded down after a number of 0..1 has been added, so they are off by at most 1 / 2 step in
 * the mean, where a step is the largest weight of the page / weight_max; each moves the output by that times
 * |v|. One and a half times the root of the sum of these squares is allowed: dec is the same for all keys, so
 * its errors are not quite independent, and the mean of a few numbers is not that of many. test_decode.c
 * gives the loops whole numbers, so none of these errors are allowed there.
 *
 * Arithmetic that rounds to ten bits (tolerance_half) adds
 *
 *     2^-10 / sqrt(3)      to keys and values, of a coordinate of size 1
 *     2^-10 / sqrt(3) D    to a score, independent of the query
 *
 * which is together below 2^-11 (1 + 2 D).
 *
 * One rounding to binary16 alone is 2^-12 of a number in the mean:
 *
 *     e = 2^-12 D    a score, if one factor of all d products is rounded; p e |v| the output
 *     2^-12 p |v|    the output, if a weight is rounded
 *
 * score_rounding and weight_rounding are the roots of the sums of their squares.
 *
 * The tolerances are about 1e-5. Losing one of n keys would move the result by about 1 / n: 1e-3 and more in
 * every case with moderate scores.
 */
#include "tests/unit/gpu/attend_oracle.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "gpu/cpu/decode.h"
#include "gpu/half_tile.h"
#include "tests/lib/random_book.h"
#include "tests/lib/test.h"

/* Keys and values of all positions, and the sums of the report. */
struct oracle {
    const struct geometry *g;
    size_t n;
    double *k, *v;                /* [n, d] */
    double *offset;               /* [n] |k - mean| */
    double key_error, weight_max; /* see above; 0: nothing was rounded to whole numbers */
    size_t n_packed;
    double mean_k;                          /* |mean| of keys; 0 without a mean */
    double largest_offset;                  /* of |k - mean|; 0 without a mean */
    double squares_scores, squares_weights; /* effect of roundings to binary16, in units of 2^-12 */
    double squares_wrong, squares_size, squares_rounding, largest_score, largest_centred;
};

static void *need(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);

    assert(p);
    return p;
}

static double norm(const double *x, size_t n)
{
    double s = 0;

    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    return sqrt(s);
}

/* Rotates x [d] to position n. */
static void rotate(const struct geometry *g, double n, const double *x, double *ret)
{
    size_t half = g->n_rot / 2;

    memcpy(ret, x, g->d * sizeof(*ret));
    for (size_t i = 0; i < half; i++) {
        double c = cos(n * g->freq[i]), s = sin(n * g->freq[i]);

        ret[i] = c * x[i] - s * x[half + i];
        ret[half + i] = s * x[i] + c * x[half + i];
    }
}

/* Rotates keys [n, d] to their positions, in place. */
static void rotate_keys(const struct geometry *g, double *k, size_t n)
{
    double row[GEOMETRY_DIM_MAX];

    for (size_t i = 0; i < n; i++) {
        rotate(g, (double) i, k + i * g->d, row);
        memcpy(k + i * g->d, row, g->d * sizeof(*row));
    }
}

/* Squared error that whole numbers may cause in one row with weights @p of from .. m. */
static double rounding(const struct oracle *o, const double *p, const double *v, const float *q, size_t from,
                       size_t m)
{
    size_t d = o->g->d;
    double sum = 0, size = 0;

    for (size_t i = 0; i < d; i++)
        size += pow((double) q[i], 2);
    size = o->key_error * o->g->attn_scale * sqrt(size / (double) d);
    for (size_t page = from / 64 * 64; page <= m && page < o->n_packed; page += 64) {
        size_t first = page > from ? page : from, end = page + 64 < m + 1 ? page + 64 : m + 1;
        double largest = 0;

        for (size_t n = first; n < end; n++)
            largest = fmax(largest, p[n]);
        for (size_t n = first; n < end; n++)
            sum += pow(norm(v + n * d, d), 2) *
                   (pow(largest / (2 * o->weight_max), 2) + pow(p[n] * (size * o->offset[n] + 0x1p-10), 2));
    }
    return sum;
}

/* Adds the error that rounding to binary16 may cause in one row with weights @p of from .. m. */
static void add_roundings(struct oracle *o, const double *p, const double *v, double q_size, size_t from,
                          size_t m)
{
    size_t d = o->g->d;

    for (size_t n = from; n <= m; n++) {
        double part = p[n] * norm(v + n * d, d),
               error = o->g->attn_scale * q_size * o->offset[n] / sqrt((double) d);

        o->squares_weights += pow(part, 2);
        o->squares_scores += pow(part * error, 2);
    }
}

/* Attends with one query row to rotated keys from .. m of @k, @v; compares @got
 * and adds to the sums of the report. */
static void attend_row(struct oracle *o, const double *k, const double *v, const float *q, size_t from,
                       size_t m, const float *got)
{
    size_t d = o->g->d;
    double *scores = need(m + 1, sizeof(*scores)), *sum = need(d, sizeof(*sum));
    double x[GEOMETRY_DIM_MAX] = {0}, y[GEOMETRY_DIM_MAX], max = -INFINITY, total = 0, largest_key = 0;

    for (size_t i = 0; i < d; i++)
        x[i] = (double) q[i];
    rotate(o->g, (double) m, x, y);
    for (size_t n = from; n <= m; n++) {
        for (size_t i = 0; i < d; i++)
            scores[n] += y[i] * k[n * d + i];
        scores[n] *= o->g->attn_scale;
        max = fmax(max, scores[n]);
        largest_key = fmax(largest_key, norm(k + n * d, d));
    }
    for (size_t n = from; n <= m; n++) {
        double p = exp(scores[n] - max);

        total += p;
        for (size_t i = 0; i < d; i++)
            sum[i] += p * v[n * d + i];
    }
    for (size_t n = from; n <= m; n++) {
        scores[n] = exp(scores[n] - max) / total;
        o->squares_size += scores[n] * pow(norm(v + n * d, d), 2);
    }
    if (o->weight_max > 0)
        o->squares_rounding += rounding(o, scores, v, q, from, m);
    if (o->offset)
        add_roundings(o, scores, v, norm(x, d), from, m);
    for (size_t i = 0; i < d; i++)
        o->squares_wrong += pow(sum[i] / total - (double) got[i], 2);
    o->largest_score = fmax(o->largest_score, o->g->attn_scale * norm(x, d) * (largest_key + 2 * o->mean_k));
    o->largest_centred = fmax(o->largest_centred, o->g->attn_scale * norm(x, d) * o->largest_offset);
    free(scores);
    free(sum);
}

/* The first position that a query at @m sees. */
static size_t window_first(size_t window, size_t m)
{
    return window > 0 && m + 1 > window ? m + 1 - window : 0;
}

static struct oracle_report report(const struct oracle *o)
{
    const double u = 0x1p-24;

    return (struct oracle_report){
        .error = sqrt(o->squares_wrong / o->squares_size),
        .tolerance = 8 * u * o->largest_score + 16 * u + 1.5 * sqrt(o->squares_rounding / o->squares_size),
        .tolerance_half = 8 * u * o->largest_score + 16 * u +
                          0x1p-11 * (1 + 2 * o->largest_centred / sqrt((double) o->g->d)),
        .score_rounding = 0x1p-12 * sqrt(o->squares_scores / o->squares_size),
        .weight_rounding = 0x1p-12 * sqrt(o->squares_weights / o->squares_size),
    };
}

/* ---- packed ---- */

/* Level of the code of (token, coordinate), in the unit that dec expects. */
static double level(const struct table *t, enum side side, const struct codec *c, const uint8_t *at,
                    unsigned token, unsigned coord)
{
    unsigned half = coord / 8;

    for (unsigned i = 0; i < half; i++)
        at += 64 * c->bits[i];
    if (c->bits[half] == 0)
        return 0;
    return (double) t->levels[side][c->bits[half]]
        .value[random_book_index(&t->levels[side][c->bits[half]], at, c->bits[half], side, token, coord % 8)];
}

/* x^ = mean + dec levels */
static void decode(const struct codec *c, size_t d, const double *levels, double *ret)
{
    for (size_t i = 0; i < d; i++) {
        ret[i] = (double) c->mean[i];
        for (size_t j = 0; j < c->r_in; j++)
            ret[i] += (double) c->dec[i * c->r_in + j] * levels[j];
    }
}

static void exact_row(const struct codec *c, size_t d, const void *row, double *ret)
{
    for (size_t i = 0; i < d; i++) {
        uint16_t h;

        memcpy(&h, (const char *) row + 2 * i, sizeof(h));
        ret[i] = (double) c->mean[i] + (double) f16_to_f32(h);
    }
}

/* Levels that a value of one token is predicted from: of its head, or of all heads one after the other. */
static size_t predictor_levels(const struct attend_args *a, size_t page, unsigned token, double *ret)
{
    const struct page_layout *l = a->layout;
    const struct table *t = l->table;
    size_t n = 0;

    for (uint32_t h = 0; h < t->geometry.n_kv_heads; h++) {
        const struct codec *k = table_codec(t, a->layer, h, SIDE_K);

        if (t->v_from == PREDICT_NONE || (t->v_from == PREDICT_HEAD && h != l->shard.first_head + a->head))
            continue;
        for (unsigned c = 0; c < k->r; c++)
            ret[n++] =
                level(t, SIDE_K, k, a->payloads[page] + page_block_off(l, a->layer, h - l->shard.first_head),
                      token, c);
    }
    return n;
}

static void load_page(struct oracle *o, const struct attend_args *a, const struct codec *const codec[2],
                      size_t page)
{
    const struct page_layout *l = a->layout;
    const uint8_t *block = a->payloads[page] + page_block_off(l, a->layer, a->head);
    size_t d = o->g->d, at = page * 64 * d;
    double *levels = need(codec[SIDE_V]->r_in + TABLE_RANK_MAX, sizeof(*levels));

    if (page > 1 && a->payloads[page] == a->payloads[page - 1]) { /* long contexts repeat one page */
        memcpy(o->k + at, o->k + at - 64 * d, 64 * d * sizeof(*o->k));
        memcpy(o->v + at, o->v + at - 64 * d, 64 * d * sizeof(*o->v));
        free(levels);
        return;
    }
    for (unsigned t = 0; t < CHUNK_TOKENS; t++) {
        double *k = o->k + at + t * d, *v = o->v + at + t * d;
        size_t n;

        for (unsigned c = 0; c < codec[SIDE_K]->r; c++)
            levels[c] = level(l->table, SIDE_K, codec[SIDE_K], block, t, c);
        decode(codec[SIDE_K], d, levels, k);
        n = predictor_levels(a, page, t, levels);
        for (unsigned c = 0; c < codec[SIDE_V]->r; c++)
            levels[n + c] = level(l->table, SIDE_V, codec[SIDE_V], block + page_v_off(codec[SIDE_K]), t, c);
        decode(codec[SIDE_V], d, levels, v);
        if (page > 0 || t >= a->n_sink)
            continue;
        exact_row(codec[SIDE_K], d, a->payloads[0] + page_sink_off(l, a->layer, a->head, SIDE_K) + t * 2 * d,
                  k);
        exact_row(codec[SIDE_V], d, a->payloads[0] + page_sink_off(l, a->layer, a->head, SIDE_V) + t * 2 * d,
                  v);
    }
    free(levels);
}

static void find_offsets(struct oracle *o, const float *mean)
{
    double offset[GEOMETRY_DIM_MAX];

    o->offset = need(o->n, sizeof(double));
    for (size_t n = 0; n < o->n; n++) {
        for (size_t i = 0; i < o->g->d; i++)
            offset[i] = o->k[n * o->g->d + i] - (double) mean[i];
        o->offset[n] = norm(offset, o->g->d);
        o->largest_offset = fmax(o->largest_offset, o->offset[n]);
    }
}

struct oracle_report oracle_packed(const struct attend_args *a, const struct decode_ops *whole)
{
    const struct table *t = a->layout->table;
    uint32_t head = a->layout->shard.first_head + a->head;
    const struct codec *codec[2] = {table_codec(t, a->layer, head, SIDE_K),
                                    table_codec(t, a->layer, head, SIDE_V)};
    size_t d = t->geometry.d, group = geometry_group(&t->geometry);
    struct oracle o = {.g = &t->geometry, .n = a->exact_first + a->n_exact};

    o.k = need(o.n * d, sizeof(double));
    o.v = need(o.n * d, sizeof(double));
    for (size_t i = 0; i < d; i++)
        o.mean_k += pow((double) codec[SIDE_K]->mean[i], 2);
    o.mean_k = sqrt(o.mean_k);
    for (size_t page = 0; page < a->n_pages; page++)
        load_page(&o, a, codec, page);
    for (size_t i = 0; i < a->n_exact; i++) {
        exact_row(codec[SIDE_K], d, a->exact_k + i * a->exact_stride, o.k + (a->exact_first + i) * d);
        exact_row(codec[SIDE_V], d, a->exact_v + i * a->exact_stride, o.v + (a->exact_first + i) * d);
    }
    find_offsets(&o, codec[SIDE_K]->mean);
    if (whole && a->n_q * group <= DECODE_ROWS_MAX) {
        o.key_error = 3 / (2 * sqrt(3) * whole->narrow_max);
        o.weight_max = whole->weight_max;
        o.n_packed = 64 * a->n_pages;
    }
    rotate_keys(o.g, o.k, o.n);
    for (size_t i = 0; i < a->n_q * group; i++)
        attend_row(&o, o.k, o.v, a->q + i / group * a->q_stride + i % group * d,
                   window_first(a->window, a->q_first + i / group), a->q_first + i / group,
                   a->out + i / group * a->out_stride + i % group * d);
    free(o.k);
    free(o.offset);
    free(o.v);
    return report(&o);
}

/* ---- dense ---- */

/* The rule of gpu/attend.h, word for word. */
static bool is_exact(const struct attend_dense_args *a, int64_t m, int64_t n)
{
    if (n < a->n_sink)
        return true;
    if (a->n_recent == EXACT_BY_STEP)
        return (n / 64 + 1) * 64 + 64 > m + 1;
    return n > m - a->n_recent;
}

/* Rows of one version, [n, d] in binary64. */
static double *load_rows(const float *x, size_t n, size_t d, size_t stride)
{
    double *ret = need(n * d, sizeof(*ret));

    for (size_t i = 0; i < n * d; i++)
        ret[i] = (double) x[i / d * stride + i % d];
    return ret;
}

struct oracle_report oracle_dense(const struct attend_dense_args *a)
{
    size_t d = a->geometry->d, group = geometry_group(a->geometry);
    struct oracle o = {.g = a->geometry, .n = a->q_first + a->n_q};
    double *k[2] = {load_rows(a->decoded_k, o.n, d, a->row_stride),
                    load_rows(a->exact_k, o.n, d, a->row_stride)};
    double *v[2] = {load_rows(a->decoded_v, o.n, d, a->row_stride),
                    load_rows(a->exact_v, o.n, d, a->row_stride)};

    rotate_keys(o.g, k[0], o.n);
    rotate_keys(o.g, k[1], o.n);
    o.k = need(o.n * d, sizeof(double));
    o.v = need(o.n * d, sizeof(double));
    for (size_t i = 0; i < a->n_q * group; i++) {
        size_t m = a->q_first + i / group;

        for (size_t n = 0; n <= m; n++) {
            bool exact = is_exact(a, (int64_t) m, (int64_t) n);

            memcpy(o.k + n * d, k[exact] + n * d, d * sizeof(double));
            memcpy(o.v + n * d, v[exact] + n * d, d * sizeof(double));
        }
        attend_row(&o, o.k, o.v, a->q + i / group * a->q_stride + i % group * d, window_first(a->window, m),
                   m, a->out + i / group * a->out_stride + i % group * d);
    }
    for (int i = 0; i < 2; i++) {
        free(k[i]);
        free(v[i]);
    }
    free(o.k);
    free(o.v);
    return report(&o);
}
