/* See shape.h. */
#include "alloc/solve/shape.h"

#include <assert.h>
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/rotation.h"
#include "alloc/solve/metric.h"
#include "alloc/solve/transform.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"

/* Variance of a coordinate scaled to about 1: a smaller one is rounding. */
#define VARIANCE_FLOOR 1e-12

struct shape_work {
    size_t n, d;
    const float *x;       /* [n, d] sampled vectors */
    double *S, *M;        /* [d, d] */
    float *z, *unrotated; /* [n, d] */
    float *H;             /* [d, d] */
    struct transform t;
};

static void shape_work_deinit(struct shape_work *w)
{
    free(w->S);
    free(w->z);
    transform_deinit(&w->t);
}

static int shape_work_init(struct shape_work *w, size_t n, size_t d)
{
    *w = (struct shape_work){.n = n, .d = d};
    w->S = malloc(2 * d * d * sizeof(*w->S));
    w->z = malloc((2 * n * d + d * d) * sizeof(*w->z));
    if (!w->S || !w->z || transform_init(&w->t, (uint32_t) d) < 0)
        return -ENOMEM;

    w->M = w->S + d * d;
    w->unrotated = w->z + n * d;
    w->H = w->unrotated + n * d;
    return 0;
}

/* ---- counting ---- */

static void shape_count(struct shape_pool *pool, enum shape_stage stage, double z)
{
    double at = (z + SHAPE_RANGE) * (SHAPE_BINS / (2 * SHAPE_RANGE));
    size_t bin = (size_t) fmin(fmax(at, 0), SHAPE_BINS - 1);

    pool->n[stage]++;
    pool->count[stage][bin]++;
}

/* Kurtosis of each of the @width columns of z [n, width], and the columns' normalised values. */
static void shape_measure_columns(const float *z, size_t n, size_t width, enum shape_stage stage,
                                  struct shape *ret, struct shape_pool *pool)
{
    ret->n[stage] = 0;
    for (size_t c = 0; c < width; c++) {
        double mean = 0, m2 = 0, m4 = 0;

        for (size_t t = 0; t < n; t++)
            mean += (double) z[t * width + c] / (double) n;
        for (size_t t = 0; t < n; t++) {
            double e = (double) z[t * width + c] - mean, e2 = e * e;

            m2 += e2 / (double) n;
            m4 += e2 * e2 / (double) n;
        }

        if (!(m2 > VARIANCE_FLOOR))
            continue;

        ret->kurtosis[stage][ret->n[stage]++] = m4 / (m2 * m2) - 3;
        for (size_t t = 0; t < n; t++)
            shape_count(pool, stage, ((double) z[t * width + c] - mean) / sqrt(m2));
    }
}

double shape_quantile(const struct shape_pool *pool, enum shape_stage stage, double p)
{
    double left = p * (double) pool->n[stage], width = 2 * SHAPE_RANGE / SHAPE_BINS;

    for (size_t i = 0; i < SHAPE_BINS; i++) {
        double here = (double) pool->count[stage][i];

        if (here > 0 && left <= here)
            return -SHAPE_RANGE + ((double) i + left / here) * width;

        left -= here;
    }
    return (double) NAN;
}

/* ---- coordinates ---- */

/* w->unrotated [n, r] := the transform's coordinates before its bands were rotated,
 * times the bands' deviations if @scaled. The rotations are orthogonal and known by
 * their seeds: their transposes undo them. */
static void shape_undo_bands(struct shape_work *w, uint64_t seed, bool scaled)
{
    size_t r = w->t.n_coords;

    for (uint32_t b = 0; b < w->t.n_bands; b++) {
        uint32_t width = band_coords(&w->t, b), first = b * BAND_COORDS;
        double H[BAND_COORDS * BAND_COORDS], factor = scaled ? w->t.scale[b] / w->t.scale[0] : 1;

        rotation_matrix(width, splitmix64_seed(seed, b), H);
        for (size_t t = 0; t < w->n; t++)
            for (uint32_t i = 0; i < width; i++) {
                double sum = 0;

                for (uint32_t j = 0; j < width; j++)
                    sum += H[j * width + i] * (double) w->z[t * r + first + j];
                w->unrotated[t * r + first + i] = (float) (factor * sum);
            }
    }
}

/* w->z [n, r] := H_r times the rows of w->unrotated: the paper's rotation of all directions with variance. */
static int shape_rotate_all(struct shape_work *w, uint64_t seed)
{
    size_t r = w->t.n_coords;
    _cleanup_(freep) double *H = malloc(r * r * sizeof(*H));

    if (!H)
        return -ENOMEM;

    rotation_matrix(r, seed, H);
    for (size_t i = 0; i < r * r; i++)
        w->H[i] = (float) H[i];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) w->n, (int) r, (int) r, 1.0f, w->unrotated,
                (int) r, w->H, (int) r, 0.0f, w->z, (int) r);
    return 0;
}

/* Stages @before and @after: bands under w->M; if w->M is the identity,
 * the basis and rotation of the paper. */
static int shape_measure_pair(struct shape_work *w, const double *mean, uint64_t seed, bool paper,
                              struct shape *ret, struct shape_pool *pool)
{
    size_t r;
    int err = transform_fit(&w->t, w->S, w->M, seed);

    if (err < 0)
        return err;

    err = transform_apply(&w->t, mean, w->x, w->n, w->z);
    r = w->t.n_coords;
    if (err < 0 || r == 0)
        return err;

    if (!paper)
        shape_measure_columns(w->z, w->n, r, SHAPE_BANDS, ret, pool);
    shape_undo_bands(w, seed, paper);
    shape_measure_columns(w->unrotated, w->n, r, paper ? SHAPE_EIGEN : SHAPE_BASIS, ret, pool);
    if (!paper)
        return 0;

    err = shape_rotate_all(w, seed);
    if (err < 0)
        return err;

    shape_measure_columns(w->z, w->n, r, SHAPE_ROTATED, ret, pool);
    return 0;
}

int shape_measure(const struct stats *s, enum metric m, double power, uint64_t seed, uint32_t layer,
                  uint32_t head, enum side side, struct shape *ret, struct shape_pool *pool)
{
    size_t d = s->o.geometry.d, dd = d * d, hs = head_side_index(&s->o.geometry, layer, head, side);
    _cleanup_(shape_work_deinit) struct shape_work w = {0};
    _cleanup_(freep) float *x = NULL;
    uint64_t own_seed = splitmix64_seed(seed, hs);
    int r;

    if (s->n_held == 0 || s->n_tokens == 0)
        return -ENODATA;

    r = shape_work_init(&w, s->n_held, d);
    if (r < 0)
        return r;

    x = stats_sample_load(s, (uint32_t) hs);
    if (!x)
        return -ENOMEM;

    w.x = x;
    memset(ret->n, 0, sizeof(ret->n));
    for (size_t i = 0; i < dd; i++)
        w.S[i] = s->scatter[hs * dd + i] / (double) s->n_tokens;
    r = metric_matrix(s, m, power, layer, head, side, w.S, w.M);
    if (r < 0)
        return r;

    r = shape_measure_pair(&w, s->mean + hs * d, own_seed, false, ret, pool);
    if (r < 0)
        return r;

    r = metric_matrix(s, METRIC_MSE, 1, layer, head, side, w.S, w.M);
    return r < 0 ? r : shape_measure_pair(&w, s->mean + hs * d, own_seed, true, ret, pool);
}
