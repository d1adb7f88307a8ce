/* See stats_view.h. */
#include "alloc/stats/stats_view.h"

#include <errno.h>

#include "alloc/stats/stats_internal.h"

const double *stats_mean(const struct stats *s, uint32_t head_side)
{
    return s->mean + (size_t) head_side * s->o.geometry.d;
}

void stats_covariance(const struct stats *s, uint32_t head_side, double *ret)
{
    size_t dd = (size_t) s->o.geometry.d * s->o.geometry.d;
    double n = s->n_tokens ? (double) s->n_tokens : 1;

    for (size_t i = 0; i < dd; i++)
        ret[i] = s->scatter[head_side * dd + i] / n;
}

int stats_query_moment(const struct stats *s, uint32_t layer, uint32_t head, double *ret)
{
    const struct geometry *g = &s->o.geometry;
    size_t dd = (size_t) g->d * g->d, at = ((size_t) layer * g->n_kv_heads + head) * dd;
    double n = s->n_tokens ? (double) s->n_tokens * geometry_group(g) : 1;

    if (!s->query)
        return -ENODATA;

    for (size_t i = 0; i < dd; i++)
        ret[i] = s->query[at + i] / n;
    return 0;
}

float *stats_sampled(const struct stats *s, uint32_t head_side)
{
    return stats_sample_load(s, head_side);
}
