/*
 * SVDq at 2 bits: keys, before RoPE, in the eigenbasis of their covariance; the coordinates, by descending
 * variance, in eight equal groups of 8, 4, 2, 1, 1, 0, 0 and 0 bits; each coded uniformly between its minimum
 * and maximum. Values stay in 16 bits, as in the original.
 *
 * The original takes basis, mean and ranges from the prompt itself (one basis per layer). Here they come from
 * the calibration, one basis per head, so that a token can be appended and only codes are stored.
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
#include "base/half.h"
#include "lab/comparators/comparator.h"

static const uint8_t schedule[8] = {8, 4, 2, 1, 1, 0, 0, 0};

/* One head of keys; matrices of all heads stand in one piece of memory. */
struct svdq_state {
    uint32_t d;
    float *basis;     /* [heads of all layers, d, d] rows are directions */
    float *mean;      /* [.., d] */
    float *lo, *step; /* [.., d] */
};

static void svdq_release(void *p)
{
    struct svdq_state *s = p;

    if (!s)
        return;

    free(s->basis);
    free(s->mean);
    free(s->lo);
    free(s->step);
    free(s);
}

static unsigned svdq_bits_of(uint32_t d, uint32_t i)
{
    return schedule[8 * i / d];
}

static float svdq_coordinate(const struct svdq_state *st, size_t head, const float *x, uint32_t i)
{
    const float *u = st->basis + (head * st->d + i) * st->d, *mean = st->mean + head * st->d;
    float z = 0;

    for (uint32_t j = 0; j < st->d; j++)
        z += u[j] * (x[j] - mean[j]);
    return z;
}

static int svdq_prepare_head(const struct stats *s, uint32_t head_side, size_t head, double *S, double *w,
                             struct svdq_state *st)
{
    uint32_t d = st->d;
    _cleanup_(freep) float *x = stats_sampled(s, head_side);
    const double *mean = stats_mean(s, head_side);
    int r;

    if (!x)
        return -ENOMEM;

    stats_covariance(s, head_side, S);
    r = linalg_eigen(d, S, w);
    if (r < 0)
        return r;

    for (size_t i = 0; i < (size_t) d * d; i++)
        st->basis[head * d * d + i] = (float) S[i];
    for (uint32_t i = 0; i < d; i++)
        st->mean[head * d + i] = (float) mean[i];
    for (uint32_t i = 0; i < d && svdq_bits_of(d, i) > 0; i++) {
        float lo = INFINITY, hi = -INFINITY;

        for (size_t t = 0; t < stats_samples(s); t++) {
            float z = svdq_coordinate(st, head, x + t * d, i);

            lo = fminf(lo, z);
            hi = fmaxf(hi, z);
        }

        st->lo[head * d + i] = lo;
        st->step[head * d + i] = (hi - lo) / (float) ((1u << svdq_bits_of(d, i)) - 1);
    }

    return 0;
}

static int svdq_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                        struct errmsg *e)
{
    const struct geometry *g = &s->geometry;
    size_t n_heads = (size_t) g->n_layers * g->n_kv_heads, d = g->d;
    _cleanup_(freep) double *S = malloc(d * d * sizeof(*S));
    _cleanup_(freep) double *w = malloc(d * sizeof(*w));
    struct svdq_state *st = calloc(1, sizeof(*st));
    int r = -ENOMEM;

    if (st) {
        st->d = g->d;
        st->basis = calloc(n_heads * d * d, sizeof(float));
        st->mean = calloc(n_heads * d, sizeof(float));
        st->lo = calloc(n_heads * d, sizeof(float));
        st->step = calloc(n_heads * d, sizeof(float));
        if (S && w && st->basis && st->mean && st->lo && st->step)
            r = stats_samples(s->stats) > 0 ? 0 : -ENODATA;
    }

    for (size_t head = 0; r == 0 && head < n_heads; head++)
        r = svdq_prepare_head(s->stats, (uint32_t) head * 2 + SIDE_K, head, S, w, st);
    if (r < 0) {
        svdq_release(st);
        return fail(e, r, "%s cannot be prepared from these statistics: %s", c->name, strerror(-r));
    }

    *ret_state = st;
    return 0;
}

static void svdq_code_key(const struct svdq_state *st, size_t head, const float *x, float *y)
{
    uint32_t d = st->d;

    memcpy(y, st->mean + head * d, d * sizeof(*y));
    for (uint32_t i = 0; i < d && svdq_bits_of(d, i) > 0; i++) {
        const float *u = st->basis + (head * d + i) * d;
        float lo = st->lo[head * d + i], step = st->step[head * d + i],
              top = (float) ((1u << svdq_bits_of(d, i)) - 1), z;

        z = step > 0 ? rintf(fminf(fmaxf((svdq_coordinate(st, head, x, i) - lo) / step, 0), top)) * step + lo
                     : lo;
        for (uint32_t j = 0; j < d; j++)
            y[j] += z * u[j];
    }
}

static int svdq_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                     size_t n, float *ret_y, uint64_t *ret_bits)
{
    const struct geometry *g = &codec->geometry;
    size_t d = g->d, n_vectors = n * g->n_kv_heads;
    uint64_t bits = 0;

    if (side == SIDE_V) {
        for (size_t i = 0; i < n_vectors * d; i++)
            ret_y[i] = f16_to_f32(f32_to_f16(x[i]));
        *ret_bits = n_vectors * d * 16;
        return 0;
    }

    for (size_t v = 0; v < n_vectors; v++)
        svdq_code_key(codec->state, (size_t) layer * g->n_kv_heads + v % g->n_kv_heads, x + v * d,
                      ret_y + v * d);
    for (uint32_t i = 0; i < d; i++)
        bits += n_vectors * svdq_bits_of(g->d, i);
    *ret_bits = bits;
    return 0;
}

const struct comparator comparator_svdq_2 = {
    .name = "svdq-2",
    .what = "K: eigenbasis, groups of 8 4 2 1 1 0 0 0 bits; V in 16 bits",
    .citation = "like Hong et al., SVDq, 2025",
    .bits = 2,
    .block_tokens = 1,
    .calibrated = true,
    .prepare = svdq_prepare,
    .release = svdq_release,
    .code = svdq_code,
};
