/* See depth.h. */
#include "alloc/solve/depth.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/solve/metric.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int depth_layer_table(const struct stats *s, uint32_t layer, enum side side, double bpd, uint64_t seed,
                      void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(solver_deinit) struct solver v = {0};
    struct solve_options o;
    int r;

    if (layer >= s->o.geometry.n_layers)
        return fail(e, -EINVAL, "layer %u: the model has %u layers", layer, s->o.geometry.n_layers);

    solve_options_for(&o, METHOD_BANDS, bpd);
    o.fit_levels = o.depth_weights = false;
    o.v_from = PREDICT_NONE;
    o.decoder = DECODER_INVERSE;
    o.trellis_states = 0; /* depth_round_trip() codes vectors one by one */
    o.seed = seed;
    r = solver_init(&v, s, &o, e);
    if (r < 0)
        return r;

    v.only_layer = layer;
    v.only_side = side;
    r = solve_fit_sides(&v, 1u << side, e);
    if (r < 0)
        return r;

    r = solve_allocate(&v, e);
    if (r < 0)
        return r;

    return solve_build(&v, ret_bytes, ret_n_bytes, e);
}

/* x_hat := mean + dec level(code(enc (x - mean))) for n rows of one head. @scratch [n, d + r]. */
static void depth_round_trip_head(const struct table *t, const struct codec *c, enum side side,
                                  const float *x, float *ret_x_hat, size_t n, size_t row_stride,
                                  float *scratch)
{
    size_t d = t->geometry.d, r = c->r;
    float *centred = scratch, *z = scratch + n * d;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++) {
            centred[i * d + j] = x[i * row_stride + j] - c->enc_mean[j];
            ret_x_hat[i * row_stride + j] = c->mean[j];
        }
    if (r == 0)
        return;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) r, (int) d, 1.0f, centred, (int) d,
                c->enc, (int) d, 0.0f, z, (int) r);
    for (size_t i = 0; i < n * r; i++) {
        unsigned b = c->bits[i % r / 8];
        const struct levels *l = &t->levels[side][b];

        z[i] = b > 0 ? l->value[quantise_fast(l, b, z[i])] : 0;
    }

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) r, 1.0f, z, (int) r, c->dec,
                (int) r, 1.0f, ret_x_hat, (int) row_stride);
}

int depth_round_trip(const struct table *t, uint32_t layer, enum side side, const float *x, float *ret_x_hat,
                     size_t n, size_t row_stride)
{
    size_t d = t->geometry.d;
    _cleanup_(freep) float *scratch = calloc(n * (d + TABLE_RANK_MAX) + 1, sizeof(*scratch));

    if (!scratch)
        return -ENOMEM;

    for (uint32_t head = 0; head < t->geometry.n_kv_heads; head++) {
        const struct codec *c = table_codec(t, layer, head, side);

        if (c->n_pred > 0)
            return -EINVAL;

        depth_round_trip_head(t, c, side, x + head * d, ret_x_hat + head * d, n, row_stride, scratch);
    }

    return 0;
}

double depth_distortion(const struct stats *s, uint32_t layer, enum side side, const float *x,
                        const float *x_hat, size_t n, size_t row_stride)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    _cleanup_(freep) double *M = malloc((d * d + d) * sizeof(*M));
    double *error = M ? M + d * d : NULL, sum = 0;

    for (uint32_t head = 0; M && head < g->n_kv_heads; head++) {
        /* METRIC_ATTENTION reads no covariance and does not fail */
        (void) metric_matrix(s, METRIC_ATTENTION, 1, layer, head, side, NULL, M);
        for (size_t t = 0; t < n; t++) {
            const float *a = x + t * row_stride + head * d, *b = x_hat + t * row_stride + head * d;

            for (size_t i = 0; i < d; i++)
                error[i] = (double) b[i] - (double) a[i];
            for (size_t i = 0; i < d; i++) {
                double row = 0;

                for (size_t j = 0; j < d; j++)
                    row += M[i * d + j] * error[j];
                sum += error[i] * row;
            }
        }
    }

    return M ? sum / (double) n : NAN;
}
