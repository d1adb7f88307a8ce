/* See spectrum.h. */
#include "alloc/solve/spectrum.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/solve/metric.h"
#include "alloc/solve/transform.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"

#define FLOOR 1e-12 /* relative to the largest eigenvalue: smaller ones are rounding, as in transform.c */

int spectrum_fill(const struct stats *s, enum metric m, double power, uint32_t layer, uint32_t head,
                  enum side side, double *ret_lambda, double *ret_weighted)
{
    size_t d = s->o.geometry.d, dd = d * d;
    const double *scatter = s->scatter + head_side_index(&s->o.geometry, layer, head, side) * dd;
    _cleanup_(freep) double *S = malloc(2 * dd * sizeof(*S));
    _cleanup_(transform_deinit) struct transform t = {.d = 0};
    double *M, lambda[GEOMETRY_DIM_MAX];
    int r;

    if (!S || transform_init(&t, (uint32_t) d) < 0)
        return -ENOMEM;
    if (s->n_tokens == 0)
        return -ENODATA;

    M = S + dd;
    for (size_t i = 0; i < dd; i++)
        S[i] = scatter[i] / (double) s->n_tokens;
    r = metric_matrix(s, m, power, layer, head, side, S, M);
    if (r < 0)
        return r;

    r = transform_fit(&t, S, M, 0);
    if (r < 0)
        return r;

    r = linalg_eigen(d, S, lambda);
    if (r < 0)
        return r;

    for (size_t i = 0; i < d; i++) {
        ret_lambda[i] = fmax(lambda[i], 0);
        ret_weighted[i] = t.w[i];
    }

    return 0;
}

double spectrum_power_law(const double *w, size_t n)
{
    double x_mean = 0, y_mean = 0, xx = 0, xy = 0;
    size_t used = 0;

    while (used < n && w[used] > 0 && w[used] > FLOOR * w[0])
        used++;
    if (used < 2)
        return (double) NAN;

    for (size_t i = 0; i < used; i++) {
        x_mean += log((double) i + 1) / (double) used;
        y_mean += log(w[i]) / (double) used;
    }

    for (size_t i = 0; i < used; i++) {
        double x = log((double) i + 1) - x_mean;

        xx += x * x;
        xy += x * (log(w[i]) - y_mean);
    }

    return -xy / xx;
}

double spectrum_effective_rank(const double *w, size_t n)
{
    double sum = 0, squares = 0;

    /* scaled by the largest, so that squares neither overflow nor vanish */
    for (size_t i = 0; i < n && w[0] > 0; i++) {
        sum += w[i] / w[0];
        squares += (w[i] / w[0]) * (w[i] / w[0]);
    }
    return squares > 0 ? sum * sum / squares : 0;
}
