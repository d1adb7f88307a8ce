/* See solve_dp_curve.h. */
#include "alloc/solve/solve_dp_curve.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_dp.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"

/* Tokens that are quantised: at r = 16 some 16000 numbers, which give a distortion to about 1 %. */
#define CURVE_TOKENS 1024

/* Samples of one head and scratch memory; binary32, except for the rotation. */
struct dp_curve_trial {
    size_t n, d;
    float *x;        /* [n, d] centred vectors */
    float *z;        /* [n, r] coordinates of unit variance */
    float *error;    /* [n, r] errors of these coordinates at one width */
    float *back;     /* [n, d] the error by direction u_i */
    float *enc32;    /* [r, d] */
    float *rotate32; /* [r, r] H_r: rotates an error of z back to directions */
    double *enc;     /* [r, d] */
};

static void dp_curve_trial_deinit(struct dp_curve_trial *t)
{
    free(t->x);
    free(t->enc);
}

/* Takes every k-th sampled token, so that all parts of the text count. */
static int dp_curve_trial_init(struct dp_curve_trial *t, const struct solver *v, uint32_t head_side)
{
    size_t d = v->g->d, step = (v->n + CURVE_TOKENS - 1) / CURVE_TOKENS, n = (v->n + step - 1) / step;
    _cleanup_(freep) float *from = solver_samples(v, head_side);
    const double *mean = v->heads[head_side].mean;

    *t = (struct dp_curve_trial){.n = n, .d = d};
    t->x = malloc((4 * n * d + 2 * d * d) * sizeof(float));
    t->enc = malloc(d * d * sizeof(double));
    if (!from || !t->x || !t->enc)
        return -ENOMEM;

    t->z = t->x + n * d;
    t->error = t->z + n * d;
    t->back = t->error + n * d;
    t->enc32 = t->back + n * d;
    t->rotate32 = t->enc32 + d * d;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->x[i * d + j] = (float) ((double) from[i * step * d + j] - mean[j]);
    return 0;
}

/*
 * z = E x at rank @r, and H_r = scale E U' to rotate errors back: E = H_r U_r' / scale, so direction i has
 * the error scale * sum_j e_j H[j, i].
 */
static int dp_curve_project(struct dp_curve_trial *t, const struct solver *v, uint32_t head_side,
                            const double *lambda, const double *basis, uint32_t r, double *ret_scale)
{
    size_t n = t->n, d = t->d;
    int err = spectra_rotation(v, head_side, lambda, basis, r, t->enc, ret_scale);

    if (err < 0)
        return err;

    for (size_t i = 0; i < r * d; i++)
        t->enc32[i] = (float) t->enc[i];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) r, (int) d, 1.0f, t->x, (int) d,
                t->enc32, (int) d, 0.0f, t->z, (int) r);
    for (size_t j = 0; j < r; j++)
        for (size_t i = 0; i < r; i++)
            t->rotate32[j * r + i] =
                (float) (*ret_scale * cblas_ddot((int) d, t->enc + j * d, 1, basis + i * d, 1));
    return 0;
}

/* error := z^ - z at width @b. Return: the sum of squares. */
static double dp_curve_quantise_error(struct dp_curve_trial *t, const struct levels *l, unsigned b, size_t r)
{
    float level[1 << TABLE_BITS_MAX];
    double sum = 0;

    for (unsigned q = 0; q < 1u << b; q++)
        level[q] = (float) level_z(l, q);
    for (size_t i = 0; i < t->n; i++) {
        float token = 0;

        for (size_t j = i * r; j < (i + 1) * r; j++) {
            t->error[j] = level[quantise_fast(l, b, t->z[j])] - t->z[j];
            token += t->error[j] * t->error[j];
        }

        sum += (double) token;
    }

    return sum;
}

/* sum over tokens and directions of factor_i times the squared error in direction i, in units of z. */
static double dp_curve_weighted_error(struct dp_curve_trial *t, const double *factor, size_t r)
{
    double by_direction[GEOMETRY_DIM_MAX] = {0}, sum = 0;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) t->n, (int) r, (int) r, 1.0f, t->error,
                (int) r, t->rotate32, (int) r, 0.0f, t->back, (int) r);
    for (size_t i = 0; i < t->n; i++)
        for (size_t j = 0; j < r; j++)
            by_direction[j] += (double) t->back[i * r + j] * (double) t->back[i * r + j];
    for (size_t j = 0; j < r; j++)
        sum += factor[j] * by_direction[j];
    return sum;
}

static int dp_curve_measure(const struct solver *v, uint32_t head_side, bool weighted,
                            const struct spectra *p, uint32_t i, double *ret_D)
{
    const double *lambda = p->lambda + (size_t) i * p->d, *w = p->w + (size_t) i * p->d;
    const double *factor = p->factor + (size_t) i * p->d, *basis = p->basis + (size_t) i * p->d * p->d;
    const struct paper_options *o = &v->o.paper;
    _cleanup_(dp_curve_trial_deinit) struct dp_curve_trial t = {0};
    int err = dp_curve_trial_init(&t, v, head_side);

    if (err < 0)
        return err;

    for (uint32_t r = 0; r <= p->d; r += o->rank_step) {
        double tail = 0, scale = 0;

        for (uint32_t c = p->d; c-- > r;)
            tail += w[c];
        if (r > 0) {
            err = dp_curve_project(&t, v, head_side, lambda, basis, r, &scale);
            if (err < 0)
                return err;
        }

        for (uint32_t b = o->b_min; b <= o->b_max; b++) {
            double sum = 0;

            if (scale > 0) /* a head with scale 0 gets no codes from spectra_make_head() */
                sum = dp_curve_quantise_error(&t, &v->model.levels[b], b, r);
            if (scale > 0 && weighted)
                sum = dp_curve_weighted_error(&t, factor, r);
            *ret_D++ = tail + scale * scale * sum / (double) t.n;
        }
    }

    return 0;
}

int dp_head_curve(const struct solver *v, enum side side, const struct spectra *p, uint32_t i, double *ret_D)
{
    const struct paper_options *o = &v->o.paper;
    size_t n = (size_t) (p->d / o->rank_step + 1) * (o->b_max - o->b_min + 1);
    double q[TABLE_BITS_MAX + 1];

    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++)
        q[b] = v->o.curve == CURVE_GAUSSIAN ? v->model.mse[b] : paper_bennett(b);
    if (v->o.curve == CURVE_MEASURED) {
        int r = dp_curve_measure(v, i * 2 + (uint32_t) side, side == SIDE_K && v->o.metric == METRIC_QUERY, p,
                                 i, ret_D);

        if (r < 0)
            return r;
    } else {
        dp_curve(p->w + (size_t) i * p->d, p->d, q, o, ret_D);
    }

    for (size_t k = 0; k < n; k++)
        if (!isfinite(ret_D[k]))
            return -EDOM;
    return 0;
}
