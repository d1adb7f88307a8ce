/* See depth.h. */
#include "alloc/depth.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/metric.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int solve_layer_table(const struct stats *s, uint32_t layer, enum side side, double bpd, uint64_t seed,
                      void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(solver_deinit) struct solver v = { 0 };
    struct solve_options o;
    int r;

    if (layer >= s->o.geometry.n_layers)
        return fail(e, -EINVAL, "layer %u: the model has %u layers", layer, s->o.geometry.n_layers);
    solve_options_for(&o, METHOD_BANDS, bpd);
    o.fit_levels = o.v_from_k = o.depth_weights = false;
    o.seed = seed;
    r = solver_init(&v, s, &o, e);
    if (r < 0)
        return r;
    v.only_layer = layer;
    v.only_side = side;
    r = solve_fit_side(&v, side, e);
    if (r == 0)
        r = solve_allocate(&v, e);
    return r < 0 ? r : solve_build(&v, ret_bytes, ret_n_bytes, e);
}

double depth_distortion(const struct stats *s, uint32_t layer, enum side side, const float *x, const float *x_hat,
                        size_t n, size_t row_stride)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    _cleanup_(freep) double *M = malloc((d * d + d) * sizeof(*M));
    double *error = M ? M + d * d : NULL, sum = 0;

    for (uint32_t head = 0; M && head < g->n_kv_heads; head++) {
        /* the attention metric reads no covariance: it cannot fail */
        (void) metric_matrix(s, METRIC_ATTENTION, layer, head, side, NULL, M);
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
