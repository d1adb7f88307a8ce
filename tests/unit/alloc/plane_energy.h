/* Energy per RoPE plane, which statistics have in their diagonals. */
#pragma once

#include "alloc/stats/stats_internal.h"

/* Mean squared length per RoPE plane of one KV head's keys and of the queries that read it.
 * @ret_query: NULL without queries. */
static inline void plane_energy(const struct stats *s, uint32_t layer, uint32_t head, double *ret_key,
                                double *ret_query)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, planes = g->n_rot / 2, hs = head_side_index(g, layer, head, SIDE_K);
    const double *mean = s->mean + hs * d, *scatter = s->scatter + hs * d * d;
    double n = s->n_tokens > 0 ? (double) s->n_tokens : 1;

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
}
