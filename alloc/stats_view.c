/* See stats_view.h. */
#include "alloc/stats_view.h"

#include <errno.h>

#include "alloc/stats_internal.h"

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

int stats_plane_energy(const struct stats *s, uint32_t layer, uint32_t head, double *ret_key,
                       double *ret_query)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, planes = g->n_rot / 2, hs = head_side_index(g, layer, head, SIDE_K);
    const double *mean = s->mean + hs * d, *scatter = s->scatter + hs * d * d;
    double n = s->n_tokens > 0 ? (double) s->n_tokens : 1;

    if (ret_query && !s->query)
        return -ENODATA;

    for (size_t p = 0; p < d / 2; p++) {
        /* half-split inside the rotated part, half-split inside the rest */
        size_t i = p < planes ? p : g->n_rot + (p - planes);
        size_t j = p < planes ? p + planes : i + (d - g->n_rot) / 2;

        ret_key[p] = scatter[i * d + i] / n + mean[i] * mean[i] + scatter[j * d + j] / n + mean[j] * mean[j];
        if (ret_query) {
            const double *q = s->query + ((size_t) layer * g->n_kv_heads + head) * d * d;

            ret_query[p] = (q[i * d + i] + q[j * d + j]) / (n * geometry_group(g));
        }
    }

    return 0;
}
