/*
 * OSCAR at 2 bits (Zhou et al., arXiv 2605.17757): a fixed rotation per layer and side, then the row of each
 * token and head is clipped at a percentile of its magnitudes and coded between its minimum and maximum, with
 * step and minimum in binary16 per group of 128. Keys after RoPE.
 *
 *     R = U H P       row z = x R
 *
 * U: eigenvectors, by ascending eigenvalue, of C_Q = E[q q'] for keys and of C_S for values, each the mean
 * over the layer's KV heads. C_S = E[w v v'] with w = k' C_Q k, scaled to a mean of 1: the released program's
 * form of V' S' S V. H: Sylvester-Hadamard. P: bit reversal by descending eigenvalue, which only decides
 * which coordinates share a group of heads with more than 128 numbers. The original keeps 64 first and 256
 * newest tokens exact: --sinks 64 --recent 256.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_view.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/range.h"

enum { GROUP = 128, BITS = 2 };
static const double percentile[2] = {0.96, 0.92}; /* keys, values */

struct oscar_state {
    uint32_t d;
    float *R; /* [n_layers, 2, d, d]: row j gives coordinate j */
};

static void oscar_release(void *p)
{
    struct oscar_state *s = p;

    if (s)
        free(s->R);
    free(s);
}

static float *oscar_rotation_of(const struct oscar_state *s, uint32_t layer, enum side side)
{
    return s->R + ((size_t) layer * 2 + side) * s->d * s->d;
}

/* ---- preparation ---- */

struct oscar_scratch {
    double *C[2]; /* [d, d] sums over the heads of a layer: C_Q, C_S */
    double *Q, *w;
};

static void oscar_scratch_deinit(struct oscar_scratch *s)
{
    free(s->C[SIDE_K]);
    free(s->C[SIDE_V]);
    free(s->Q);
    free(s->w);
}

static double oscar_form(const double *Q, const float *x, size_t d)
{
    double sum = 0;

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            sum += Q[i * d + j] * (double) x[i] * (double) x[j];
    return sum;
}

/* Adds E[w v v'] of one head to @ret; @Q: its query moment. */
static int oscar_add_values(const struct stats *s, uint32_t key, uint32_t value, const double *Q, size_t d,
                            double *ret)
{
    _cleanup_(freep) float *k = stats_sampled(s, key);
    _cleanup_(freep) float *v = stats_sampled(s, value);
    size_t n = stats_samples(s);
    _cleanup_(freep) double *w = calloc(n, sizeof(*w));
    double all = 0;

    if (!k || !v || !w)
        return -ENOMEM;

    for (size_t t = 0; t < n; t++) {
        w[t] = oscar_form(Q, k + t * d, d);
        all += w[t];
    }

    for (size_t t = 0; all > 0 && t < n; t++)
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                ret[i * d + j] += w[t] / all * (double) v[t * d + i] * (double) v[t * d + j];
    return 0;
}

static size_t oscar_reversed(size_t i, size_t d)
{
    size_t r = 0;

    for (size_t bit = 1; bit < d; bit <<= 1, i >>= 1)
        r = r << 1 | (i & 1);
    return r;
}

/* Eigenvectors of @C, by Hadamard and permutation, into @R. Destroys @C. */
static int oscar_compose(double *C, double *w, size_t d, float *R)
{
    int r;

    linalg_mirror(d, C);
    r = linalg_eigen(d, C, w); /* rows are vectors, largest first */
    if (r < 0)
        return r;

    for (size_t i = 0; i < d; i++) {
        /* H P puts column d - 1 - i of H, counted from the smallest eigenvalue, at the reversed place */
        float *row = R + oscar_reversed(i, d) * d;

        memset(row, 0, d * sizeof(*row));
        for (size_t k = 0; k < d; k++) {
            int odd = __builtin_popcountll(k & (d - 1 - i)) & 1;
            double h = (odd ? -1 : 1) / sqrt((double) d);

            for (size_t j = 0; j < d; j++)
                row[j] += (float) (h * C[(d - 1 - k) * d + j]);
        }
    }

    return 0;
}

static int oscar_fit_layer(const struct comparator_source *src, uint32_t layer, struct oscar_scratch *s,
                           struct oscar_state *st)
{
    const struct geometry *g = &src->geometry;
    size_t d = g->d;

    for (int side = 0; side < 2; side++)
        memset(s->C[side], 0, d * d * sizeof(double));
    for (uint32_t head = 0; head < g->n_kv_heads; head++) {
        int r = stats_query_moment(src->rotated, layer, head, s->Q);

        if (r == 0)
            r = oscar_add_values(src->rotated, head_side_index(g, layer, head, SIDE_K),
                                 head_side_index(g, layer, head, SIDE_V), s->Q, d, s->C[SIDE_V]);
        if (r < 0)
            return r;
        for (size_t i = 0; i < d * d; i++)
            s->C[SIDE_K][i] += s->Q[i];
    }

    for (int side = 0; side < 2; side++) {
        int r = oscar_compose(s->C[side], s->w, d, oscar_rotation_of(st, layer, (enum side) side));

        if (r < 0)
            return r;
    }

    return 0;
}

static int oscar_prepare(const struct comparator *c, const struct comparator_source *src, void **ret_state,
                         struct errmsg *e)
{
    const struct geometry *g = &src->geometry;
    size_t dd = (size_t) g->d * g->d;
    _cleanup_(oscar_scratch_deinit) struct oscar_scratch s = {
        {calloc(dd, sizeof(double)), calloc(dd, sizeof(double))},
        calloc(dd, sizeof(double)),
        calloc(g->d, sizeof(double)),
    };
    struct oscar_state *st = calloc(1, sizeof(*st));
    int r = -ENOMEM;

    if (g->d & (g->d - 1)) {
        free(st);
        return fail(e, -EOPNOTSUPP,
                    "%s rotates by Hadamard matrices of powers of two; heads have %u dimensions", c->name,
                    g->d);
    }

    if (st) {
        st->d = g->d;
        st->R = calloc((size_t) g->n_layers * 2 * dd, sizeof(*st->R));
        if (st->R && s.C[SIDE_K] && s.C[SIDE_V] && s.Q && s.w)
            r = 0;
    }

    for (uint32_t layer = 0; r == 0 && layer < g->n_layers; layer++)
        r = oscar_fit_layer(src, layer, &s, st);
    if (r < 0) {
        oscar_release(st);
        if (r == -ENODATA)
            return fail(e, r, "%s needs statistics with queries: use kvcobra calibrate --metric output",
                        c->name);

        return fail(e, r, "%s cannot be prepared from these statistics: %s", c->name, strerror(-r));
    }

    *ret_state = st;
    return 0;
}

/* ---- codes ---- */

static int oscar_ascending(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}

/* The percentile @q of |z|, linear between two numbers. */
static float oscar_limit(const float *z, size_t d, double q)
{
    float size[GEOMETRY_DIM_MAX];
    double at = q * (double) (d - 1);
    size_t low = (size_t) at, high = low + 1 < d ? low + 1 : low;

    for (size_t i = 0; i < d; i++)
        size[i] = fabsf(z[i]);
    qsort(size, d, sizeof(*size), oscar_ascending);
    return (float) ((double) size[low] + (at - (double) low) * ((double) size[high] - (double) size[low]));
}

/* y = R' (codes of R x). Return: bits. */
static uint64_t oscar_code_row(const float *R, size_t d, double q, const float *x, float *y)
{
    float z[GEOMETRY_DIM_MAX], limit;
    uint64_t bits = 0;

    for (size_t j = 0; j < d; j++) {
        z[j] = 0;
        for (size_t i = 0; i < d; i++)
            z[j] += R[j * d + i] * x[i];
    }

    limit = oscar_limit(z, d, q);
    for (size_t j = 0; j < d; j++)
        z[j] = fminf(fmaxf(z[j], -limit), limit);
    for (size_t j = 0; j < d; j += GROUP)
        bits += range_code(z + j, d - j < GROUP ? d - j : GROUP, 1, BITS, z + j);

    memset(y, 0, d * sizeof(*y));
    for (size_t j = 0; j < d; j++)
        for (size_t i = 0; i < d; i++)
            y[i] += R[j * d + i] * z[j];
    return bits;
}

static int oscar_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                      size_t n, float *ret_y, uint64_t *ret_bits)
{
    const struct oscar_state *st = codec->state;
    const float *R = oscar_rotation_of(st, layer, side);
    uint64_t bits = 0;

    for (size_t v = 0; v < n * codec->geometry.n_kv_heads; v++)
        bits += oscar_code_row(R, st->d, percentile[side], x + v * st->d, ret_y + v * st->d);
    *ret_bits = bits;
    return 0;
}

const struct comparator comparator_oscar_2 = {
    .name = "oscar-2",
    .what = "rotation by queries and attended values, Hadamard, min/max per token, clipped",
    .citation = "Zhou et al., OSCAR, arXiv 2605.17757, 2026",
    .bits = BITS,
    .block_tokens = 1,
    .post_rope = true,
    .calibrated = true,
    .prepare = oscar_prepare,
    .release = oscar_release,
    .code = oscar_code,
};
