/*
 * KVQuant-like: static non-uniform codes with 1 % of dense-and-sparse outliers. Keys before RoPE, as the
 * original.
 *
 *     keys    per channel: numbers outside the calibration's 0.5th and 99.5th percentile are stored in
 *             16 bits with their positions; the others are scaled to [-1, 1] by these percentiles and
 *             coded with the layer's levels
 *     values  per token, over the row of all heads: the largest and smallest 0.5 % are stored exactly;
 *             the others are scaled to [-1, 1] by their minimum and maximum, which are stored, and
 *             coded with the layer's levels
 *
 * Levels are one-dimensional k-means of the calibration's numbers. The original weights them by squared
 * gradients; here all have the same weight.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_fit.h"
#include "alloc/quantiser/levels_normal.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_view.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/outliers.h"

#define OUTLIER_SHARE 0.01
enum {
    FIT_TOKENS = 512, /* for the levels of a layer: times its channels, 10^5 numbers */
    RANGE_BITS = 32,  /* minimum and maximum of a token, in binary16 */
};

/* Levels of numbers in [-1, 1]: struct levels is in units of their deviation. */
struct unit_levels {
    float deviation;
    struct levels levels;
};

struct kvquant_state {
    size_t row;                  /* channels of a layer */
    float *lo, *hi;              /* [n_layers, row] percentiles of keys */
    struct unit_levels *side[2]; /* [n_layers] */
};

static void kvquant_release(void *p)
{
    struct kvquant_state *s = p;

    if (!s)
        return;

    free(s->lo);
    free(s->hi);
    free(s->side[SIDE_K]);
    free(s->side[SIDE_V]);
    free(s);
}

static float kvquant_level_of(const struct unit_levels *u, unsigned b, float x)
{
    return u->deviation * (float) level_z(&u->levels, levels_quantise(&u->levels, b, x / u->deviation));
}

static int kvquant_fit(float *x, size_t n, unsigned b, struct unit_levels *ret)
{
    double energy = 0;

    for (size_t i = 0; i < n; i++)
        energy += (double) x[i] * x[i];
    ret->deviation = energy > 0 ? (float) sqrt(energy / (double) n) : 1;
    for (size_t i = 0; i < n; i++)
        x[i] /= ret->deviation;
    return levels_fit(x, n, b, &ret->levels);
}

/* ---- keys ---- */

static int kvquant_ascending(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}

/* Scaled to [-1, 1] between the channel's percentiles; 0 if these are equal. */
static float kvquant_normalised(float x, float lo, float hi)
{
    return hi > lo ? (x - (hi + lo) / 2) / ((hi - lo) / 2) : 0;
}

/* The sampled vectors of a layer and side, [n, row]; the caller frees them. NULL: out of memory. */
static float *kvquant_load_rows(const struct stats *s, uint32_t layer, const struct geometry *g,
                                enum side side)
{
    size_t n = stats_samples(s), d = g->d, row = g->n_kv_heads * d;
    _cleanup_(freep) float *rows = malloc((n * row + 1) * sizeof(*rows));

    for (uint32_t h = 0; rows && h < g->n_kv_heads; h++) {
        _cleanup_(freep) float *x = stats_sampled(s, head_side_index(g, layer, h, side));

        if (!x)
            return NULL;
        for (size_t t = 0; t < n; t++)
            memcpy(rows + t * row + h * d, x + t * d, d * sizeof(*x));
    }
    return take_ptr(rows);
}

static void kvquant_find_percentiles(const float *x, size_t n, uint32_t layer, float *column,
                                     struct kvquant_state *st)
{
    size_t out = outliers_each(OUTLIER_SHARE, n);

    for (size_t c = 0; c < st->row; c++) {
        for (size_t t = 0; t < n; t++)
            column[t] = x[t * st->row + c];
        qsort(column, n, sizeof(*column), kvquant_ascending);
        st->lo[layer * st->row + c] = column[out];
        st->hi[layer * st->row + c] = column[n - 1 - out];
    }
}

static int kvquant_fit_keys(const float *x, size_t n, uint32_t layer, unsigned b, float *pool,
                            struct kvquant_state *st)
{
    size_t n_pool = 0;

    for (size_t c = 0; c < st->row; c++) {
        float lo = st->lo[layer * st->row + c], hi = st->hi[layer * st->row + c];

        for (size_t t = 0; t < n && t < FIT_TOKENS; t++) {
            float y = x[t * st->row + c];

            if (y >= lo && y <= hi)
                pool[n_pool++] = kvquant_normalised(y, lo, hi);
        }
    }

    return kvquant_fit(pool, n_pool, b, &st->side[SIDE_K][layer]);
}

static uint64_t kvquant_code_keys(const struct kvquant_state *st, uint32_t layer, unsigned b, const float *x,
                                  size_t n, float *y)
{
    size_t n_out = 0;

    for (size_t i = 0; i < n * st->row; i++) {
        size_t c = layer * st->row + i % st->row;
        float lo = st->lo[c], hi = st->hi[c];

        if (x[i] < lo || x[i] > hi) {
            y[i] = f16_to_f32(f32_to_f16(x[i]));
            n_out++;
        } else {
            y[i] = (hi + lo) / 2 +
                   (hi - lo) / 2 *
                       kvquant_level_of(&st->side[SIDE_K][layer], b, kvquant_normalised(x[i], lo, hi));
        }
    }

    return n * st->row * b + n_out * OUTLIER_BITS;
}

/* ---- values ---- */

/* The stored range of a token's row without outliers. Marks the outliers. */
static size_t kvquant_row_range(const float *x, size_t row, uint8_t *mark, float *ret_lo, float *ret_hi)
{
    size_t n_out = outliers_find(x, row, 1, outliers_each(OUTLIER_SHARE, row), mark);
    float lo = INFINITY, hi = -INFINITY;

    for (size_t i = 0; i < row; i++)
        if (!mark[i]) {
            lo = fminf(lo, x[i]);
            hi = fmaxf(hi, x[i]);
        }
    *ret_lo = f16_to_f32(f32_to_f16(lo));
    *ret_hi = f16_to_f32(f32_to_f16(hi));
    return n_out;
}

static int kvquant_fit_values(const float *x, size_t n, uint32_t layer, unsigned b, float *pool,
                              struct kvquant_state *st)
{
    _cleanup_(freep) uint8_t *mark = malloc(st->row);
    size_t n_pool = 0;

    if (!mark)
        return -ENOMEM;

    for (size_t t = 0; t < n && t < FIT_TOKENS; t++, x += st->row) {
        float lo, hi;

        (void) kvquant_row_range(x, st->row, mark, &lo, &hi);
        for (size_t i = 0; i < st->row; i++)
            if (!mark[i])
                pool[n_pool++] = kvquant_normalised(x[i], lo, hi);
    }

    return kvquant_fit(pool, n_pool, b, &st->side[SIDE_V][layer]);
}

static int kvquant_code_values(const struct kvquant_state *st, uint32_t layer, unsigned b, const float *x,
                               size_t n, float *y, uint64_t *ret_bits)
{
    _cleanup_(freep) uint8_t *mark = malloc(st->row);
    uint64_t bits = 0;

    if (!mark)
        return -ENOMEM;

    for (size_t t = 0; t < n; t++, x += st->row, y += st->row) {
        float lo, hi;
        size_t n_out = kvquant_row_range(x, st->row, mark, &lo, &hi);

        for (size_t i = 0; i < st->row; i++)
            y[i] = mark[i] ? f16_to_f32(f32_to_f16(x[i]))
                           : (hi + lo) / 2 + (hi - lo) / 2 *
                                                 kvquant_level_of(&st->side[SIDE_V][layer], b,
                                                                  kvquant_normalised(x[i], lo, hi));
        bits += st->row * b + n_out * OUTLIER_BITS + RANGE_BITS;
    }

    *ret_bits = bits;
    return 0;
}

/* ---- the format ---- */

static int kvquant_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                           struct errmsg *e)
{
    const struct geometry *g = &s->geometry;
    size_t row = (size_t) g->n_kv_heads * g->d, n = stats_samples(s->stats);
    _cleanup_(freep) float *column = malloc((n + 1) * sizeof(*column));
    _cleanup_(freep) float *pool = malloc((FIT_TOKENS * row + 1) * sizeof(*pool));
    struct kvquant_state *st = calloc(1, sizeof(*st));
    int r = -ENOMEM;

    if (n == 0) {
        free(st);
        return fail(e, -ENODATA, "%s: the statistics have no sampled tokens", c->name);
    }

    if (st) {
        st->row = row;
        st->lo = calloc(g->n_layers * row, sizeof(float));
        st->hi = calloc(g->n_layers * row, sizeof(float));
        for (int side = SIDE_K; side <= SIDE_V; side++)
            st->side[side] = calloc(g->n_layers, sizeof(struct unit_levels));
        if (column && pool && st->lo && st->hi && st->side[SIDE_K] && st->side[SIDE_V])
            r = 0;
    }

    for (uint32_t l = 0; r == 0 && l < g->n_layers; l++) {
        _cleanup_(freep) float *keys = kvquant_load_rows(s->stats, l, g, SIDE_K);
        _cleanup_(freep) float *values = kvquant_load_rows(s->stats, l, g, SIDE_V);

        if (!keys || !values) {
            r = -ENOMEM;
            break;
        }

        kvquant_find_percentiles(keys, n, l, column, st);
        r = kvquant_fit_keys(keys, n, l, c->bits, pool, st);
        if (r == 0)
            r = kvquant_fit_values(values, n, l, c->bits, pool, st);
    }

    if (r < 0) {
        kvquant_release(st);
        return fail(e, r, "%s: no levels: %s", c->name, strerror(-r));
    }

    *ret_state = st;
    return 0;
}

static int kvquant_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                        size_t n, float *ret_y, uint64_t *ret_bits)
{
    unsigned b = codec->what->bits;

    if (side == SIDE_V)
        return kvquant_code_values(codec->state, layer, b, x, n, ret_y, ret_bits);

    *ret_bits = kvquant_code_keys(codec->state, layer, b, x, n, ret_y);
    return 0;
}

#define WHAT "static levels by k-means, K per channel, V per token, 1 % outliers"
#define CITATION "like Hooper et al., KVQuant, NeurIPS 2024"

const struct comparator comparator_kvquant_2 = {
    .name = "kvquant-2",
    .what = WHAT,
    .citation = CITATION,
    .bits = 2,
    .block_tokens = 1,
    .calibrated = true,
    .prepare = kvquant_prepare,
    .release = kvquant_release,
    .code = kvquant_code,
};
const struct comparator comparator_kvquant_3 = {
    .name = "kvquant-3",
    .what = WHAT,
    .citation = CITATION,
    .bits = 3,
    .block_tokens = 1,
    .calibrated = true,
    .prepare = kvquant_prepare,
    .release = kvquant_release,
    .code = kvquant_code,
};
const struct comparator comparator_kvquant_4 = {
    .name = "kvquant-4",
    .what = WHAT,
    .citation = CITATION,
    .bits = 4,
    .block_tokens = 1,
    .calibrated = true,
    .prepare = kvquant_prepare,
    .release = kvquant_release,
    .code = kvquant_code,
};
