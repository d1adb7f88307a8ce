/* From sums to metrics; see metric.h. */
#include "alloc/solve/metric.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/math/sort.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

#define TEMPER_FLOOR 1e-4 /* relative to the largest eigenvalue, before the power: smaller ones are noise */
#define KL_NOISE 1e-6     /* nats: a smaller KL is rounding */

int metric_available(const struct stats *s, enum metric m, struct errmsg *e)
{
    if (m == METRIC_QUERY && !s->query)
        return fail(e, -EINVAL,
                    "the statistics have no queries: calibrate with --metric output for metric query");
    if ((m == METRIC_ATTENTION && !s->metric) || (m == METRIC_OUTPUT && !s->output))
        return fail(e, -EINVAL, "the statistics lack metric %s: calibrate with --metric %s",
                    solve_metric_name(m), solve_metric_name(m));
    if (m == METRIC_FISHER && s->n_fisher == 0)
        return fail(e, -EINVAL,
                    "the statistics have no gradients: calibrate with --metric fisher for metric fisher");

    return 0;
}

static void metric_set_identity(size_t d, double *M)
{
    memset(M, 0, d * d * sizeof(*M));
    for (size_t i = 0; i < d; i++)
        M[i * d + i] = 1;
}

static void metric_average(size_t d, const double *sum, uint64_t n, double *M)
{
    for (size_t i = 0; i < d * d; i++)
        M[i] = sum[i] / (double) n;
}

/* M := U' diag(w) U for the rows of U. */
static void metric_compose(size_t d, const double *u, const double *w, double *M)
{
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;

            for (size_t c = 0; c < d; c++)
                sum += w[c] * u[c * d + i] * u[c * d + j];
            M[i * d + j] = M[j * d + i] = sum;
        }
}

void metric_query_variance(const struct stats *s, uint32_t layer, uint32_t head, const double *basis,
                           double *ret_w)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    const double *sum = s->query + ((size_t) layer * g->n_kv_heads + head) * d * d;
    double n = (double) s->n_tokens * geometry_group(g);

    for (size_t c = 0; c < d; c++) {
        const double *u = basis + c * d;
        double total = 0;

        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                total += u[i] * sum[i * d + j] * u[j];
        ret_w[c] = n > 0 ? total / n : 0;
    }
}

static int metric_query(const struct stats *s, uint32_t layer, uint32_t head, const double *covariance,
                        double *M)
{
    size_t d = s->o.geometry.d;
    _cleanup_(freep) double *u = malloc((d * d + d) * sizeof(*u));
    int r;

    if (!u)
        return -ENOMEM;

    memcpy(u, covariance, d * d * sizeof(*u));
    r = linalg_eigen(d, u, u + d * d);
    if (r < 0)
        return r;

    metric_query_variance(s, layer, head, u, u + d * d);
    metric_compose(d, u, u + d * d, M);
    return 0;
}

enum metric metric_best(const struct stats *s)
{
    static const enum metric from_best[] = {METRIC_FISHER, METRIC_OUTPUT, METRIC_ATTENTION};

    for (size_t i = 0; i < sizeof(from_best) / sizeof(from_best[0]); i++)
        if (metric_available(s, from_best[i], NULL) == 0)
            return from_best[i];
    return METRIC_MSE;
}

double metric_power(enum metric m, double power)
{
    if (power > 0)
        return power;

    if (m == METRIC_FISHER)
        return METRIC_FISHER_POWER;
    return m == METRIC_OUTPUT ? METRIC_OUTPUT_POWER : 1;
}

/* M^power at the trace of M. */
static int metric_temper(size_t d, double power, double *M)
{
    _cleanup_(freep) double *u = NULL;
    double *w, trace = 0, powered = 0;
    int r;

    if (power == 1)
        return 0;
    u = malloc((d * d + d) * sizeof(*u));
    if (!u)
        return -ENOMEM;

    w = u + d * d;
    memcpy(u, M, d * d * sizeof(*u));
    r = linalg_eigen(d, u, w);
    if (r < 0 || !(w[0] > 0))
        return r;

    for (size_t i = d; i-- > 0;) {
        double clamped = fmax(w[i], TEMPER_FLOOR * w[0]);

        trace += clamped;
        w[i] = pow(clamped, power);
        powered += w[i];
    }

    for (size_t i = 0; i < d; i++)
        w[i] *= trace / powered;
    metric_compose(d, u, w, M);
    return 0;
}

int metric_matrix(const struct stats *s, enum metric m, double power, uint32_t layer, uint32_t head,
                  enum side side, const double *covariance, double *ret_M)
{
    size_t d = s->o.geometry.d, at = (size_t) head_side_index(&s->o.geometry, layer, head, side) * d * d;

    switch (m) {
    case METRIC_QUERY:
        if (side == SIDE_K)
            return metric_query(s, layer, head, covariance, ret_M);

        break;
    case METRIC_ATTENTION:
        metric_average(d, s->metric + at, s->n_tokens, ret_M);
        return metric_temper(d, metric_power(m, power), ret_M);
    case METRIC_OUTPUT:
        metric_average(d, s->output + at, s->n_tokens, ret_M);
        return metric_temper(d, metric_power(m, power), ret_M);
    case METRIC_FISHER:
        metric_average(d, s->fisher + at, s->n_fisher, ret_M);
        return metric_temper(d, metric_power(m, power), ret_M);
    case METRIC_MSE:
        break;
    }

    metric_set_identity(d, ret_M);
    return 0;
}

/* A measurement with a KL above the noise and a distortion to divide it by. */
static bool metric_meaningful(const struct depth_sums *m)
{
    return m->kl >= KL_NOISE * (double) m->n && m->D > 0;
}

static double metric_median_weight(const struct stats *s, enum side side)
{
    double w[GEOMETRY_LAYERS_MAX];
    size_t n = 0;

    for (uint32_t layer = 0; layer < s->o.geometry.n_layers; layer++) {
        const struct depth_sums *m = &s->depth[layer * 2 + side];

        if (metric_meaningful(m))
            w[n++] = m->kl / m->D;
    }

    if (n == 0)
        return 1;

    sort_doubles(w, n);
    return n % 2 ? w[n / 2] : (w[n / 2 - 1] + w[n / 2]) / 2;
}

double metric_depth_weight(const struct stats *s, uint32_t layer, enum side side)
{
    const struct depth_sums *m = &s->depth[layer * 2 + side];

    if (!stats_has_depth(s))
        return 1;

    return metric_meaningful(m) ? m->kl / m->D : metric_median_weight(s, side);
}
