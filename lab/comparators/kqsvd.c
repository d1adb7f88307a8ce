/*
 * KQ-SVD: the rank-r keys with the best scores K Q', and values with the best V W_O', in Frobenius norm.
 * Coordinates are stored in binary16, so rank r costs 16 r / d bits per number; the original has no
 * quantiser. Keys after RoPE.
 *
 * With C = E[k k'] and Q = E[q q'] summed over the group: R = C^(1/2), R Q R = P diag(w) P', and k^ = R P_r
 * P_r' R^-1 k is the oblique projection that loses the least of tr(C Q). Values: W_O' W_O in place of Q.
 * Moments are not centred, as in the original, and come from the calibration, keys rotated by their
 * positions.
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
#include "tools/engine/engine.h"
#include "lab/comparators/comparator.h"

struct kqsvd_state {
    uint32_t d, rank;
    float *enc; /* [head-sides, r, d]: P_r' R^-1 */
    float *dec; /* [head-sides, d, r]: R P_r */
};

struct kqsvd_scratch {
    double *C, *Q, *root, *inverse, *product, *w; /* [d, d]; w [d] */
    float *wo;                                    /* [n_embd, n_heads d] of a layer */
};

static void kqsvd_scratch_deinit(struct kqsvd_scratch *s)
{
    free(s->C);
    free(s->Q);
    free(s->root);
    free(s->inverse);
    free(s->product);
    free(s->w);
    free(s->wo);
}

static void kqsvd_release(void *p)
{
    struct kqsvd_state *s = p;

    if (s) {
        free(s->enc);
        free(s->dec);
    }

    free(s);
}

/* sum over the group's heads of W_O,h' W_O,h */
static void kqsvd_output_moment(const struct geometry *g, const float *wo, uint32_t n_embd, uint32_t head,
                                double *ret)
{
    size_t d = g->d, width = (size_t) g->n_heads * d;

    memset(ret, 0, d * d * sizeof(*ret));
    for (uint32_t row = 0; row < n_embd; row++)
        for (uint32_t h = head * geometry_group(g); h < (head + 1) * geometry_group(g); h++) {
            const float *w = wo + row * width + h * d;

            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++)
                    ret[i * d + j] += (double) w[i] * (double) w[j];
        }
}

/* C in s->C and Q in s->Q give the matrices of one head-side. */
static int kqsvd_fit_head_side(struct kqsvd_scratch *s, uint32_t head_side, struct kqsvd_state *st)
{
    size_t d = st->d, r = st->rank;
    float *enc = st->enc + head_side * r * d, *dec = st->dec + head_side * r * d;
    double ridge = 1e-9 * linalg_trace(d, s->C) / (double) d;
    int err;

    for (size_t i = 0; i < d; i++)
        s->C[i * d + i] += ridge > 0 ? ridge : 1; /* for a head that is always 0 */
    err = linalg_roots(d, s->C, s->root, s->inverse);
    if (err < 0)
        return err;

    linalg_product(d, d, d, s->root, s->Q, s->product);
    linalg_product(d, d, d, s->product, s->root, s->Q);
    linalg_mirror(d, s->Q);
    err = linalg_eigen(d, s->Q, s->w); /* rows of Q are the directions now */
    if (err < 0)
        return err;

    linalg_product(d, d, d, s->Q, s->inverse, s->C);
    linalg_product(d, d, d, s->Q, s->root, s->product);
    for (size_t k = 0; k < r; k++)
        for (size_t i = 0; i < d; i++) {
            enc[k * d + i] = (float) s->C[k * d + i];
            dec[i * r + k] = (float) s->product[k * d + i];
        }
    return 0;
}

/* E[x x'] = covariance + mean mean' */
static void kqsvd_second_moment(const struct stats *s, uint32_t head_side, size_t d, double *ret)
{
    const double *mean = stats_mean(s, head_side);

    stats_covariance(s, head_side, ret);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            ret[i * d + j] += mean[i] * mean[j];
}

static int kqsvd_fit_layer(const struct comparator_source *src, uint32_t layer, struct kqsvd_scratch *s,
                           struct kqsvd_state *st)
{
    const struct geometry *g = &src->geometry;
    int r = engine_output_projection(src->engine, layer, s->wo, NULL);

    for (uint32_t head = 0; r == 0 && head < g->n_kv_heads; head++) {
        uint32_t key = head_side_index(g, layer, head, SIDE_K),
                 value = head_side_index(g, layer, head, SIDE_V);

        kqsvd_second_moment(src->rotated, key, g->d, s->C);
        r = stats_query_moment(src->rotated, layer, head, s->Q);
        if (r < 0)
            return r;

        r = kqsvd_fit_head_side(s, key, st);
        if (r < 0)
            return r;

        kqsvd_second_moment(src->rotated, value, g->d, s->C);
        kqsvd_output_moment(g, s->wo, engine_info(src->engine)->n_embd, head, s->Q);
        r = kqsvd_fit_head_side(s, value, st);
    }

    return r;
}

static int kqsvd_prepare(const struct comparator *c, const struct comparator_source *src, void **ret_state,
                         struct errmsg *e)
{
    const struct geometry *g = &src->geometry;
    size_t d = g->d, dd = d * d * sizeof(double);
    uint32_t rank = (uint32_t) lround(c->bits * d / 16.0);
    _cleanup_(kqsvd_scratch_deinit) struct kqsvd_scratch s = {
        malloc(dd),
        malloc(dd),
        malloc(dd),
        malloc(dd),
        malloc(dd),
        malloc(dd),
        malloc((size_t) engine_info(src->engine)->n_embd * g->n_heads * d * sizeof(float)),
    };
    struct kqsvd_state *st = calloc(1, sizeof(*st));
    int r = -ENOMEM;

    if (st) {
        st->d = g->d;
        st->rank = rank;
        st->enc = calloc(head_side_count(g) * rank * d, sizeof(float));
        st->dec = calloc(head_side_count(g) * rank * d, sizeof(float));
        if (st->enc && st->dec && s.C && s.Q && s.root && s.inverse && s.product && s.w && s.wo)
            r = 0;
    }

    for (uint32_t layer = 0; r == 0 && layer < g->n_layers; layer++)
        r = kqsvd_fit_layer(src, layer, &s, st);
    if (r < 0) {
        kqsvd_release(st);
        if (r == -ENODATA)
            return fail(e, r, "%s needs statistics with queries: use kvcobra calibrate --metric output",
                        c->name);

        return fail(e, r, "%s cannot be prepared from these statistics: %s", c->name, strerror(-r));
    }

    *ret_state = st;
    return 0;
}

static int kqsvd_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                      size_t n, float *ret_y, uint64_t *ret_bits)
{
    const struct kqsvd_state *st = codec->state;
    const struct geometry *g = &codec->geometry;
    size_t d = g->d, r = st->rank;

    for (size_t v = 0; v < n * g->n_kv_heads; v++) {
        size_t at = head_side_index(g, layer, (uint32_t) (v % g->n_kv_heads), side) * r * d;
        const float *enc = st->enc + at, *dec = st->dec + at, *from = x + v * d;
        float z[GEOMETRY_DIM_MAX], *to = ret_y + v * d;

        for (size_t k = 0; k < r; k++) {
            float sum = 0;

            for (size_t i = 0; i < d; i++)
                sum += enc[k * d + i] * from[i];
            z[k] = f16_to_f32(f32_to_f16(sum));
        }

        for (size_t i = 0; i < d; i++) {
            float sum = 0;

            for (size_t k = 0; k < r; k++)
                sum += dec[i * r + k] * z[k];
            to[i] = sum;
        }
    }

    *ret_bits = n * g->n_kv_heads * r * 16;
    return 0;
}

#define WHAT "best rank for scores and outputs, coordinates in 16 bits"
#define CITATION "Lesens et al., KQ-SVD, 2025"

const struct comparator comparator_kqsvd_2 = {
    .name = "kqsvd-2",
    .what = WHAT,
    .citation = CITATION,
    .bits = 2,
    .block_tokens = 1,
    .post_rope = true,
    .calibrated = true,
    .prepare = kqsvd_prepare,
    .release = kqsvd_release,
    .code = kqsvd_code,
};
const struct comparator comparator_kqsvd_3 = {
    .name = "kqsvd-3",
    .what = WHAT,
    .citation = CITATION,
    .bits = 3,
    .block_tokens = 1,
    .post_rope = true,
    .calibrated = true,
    .prepare = kqsvd_prepare,
    .release = kqsvd_release,
    .code = kqsvd_code,
};
const struct comparator comparator_kqsvd_4 = {
    .name = "kqsvd-4",
    .what = WHAT,
    .citation = CITATION,
    .bits = 4,
    .block_tokens = 1,
    .post_rope = true,
    .calibrated = true,
    .prepare = kqsvd_prepare,
    .release = kqsvd_release,
    .code = kqsvd_code,
};
