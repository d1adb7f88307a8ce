/* Stores the measurements behind depth weights (DESIGN 3.1) in statistics. See stats.h; metric_depth_weight()
 * computes weights from them. */
#include <errno.h>
#include <math.h>

#include "alloc/stats/stats_internal.h"

bool stats_has_depth(const struct stats *s)
{
    for (size_t i = 0; i < (size_t) s->o.geometry.n_layers * 2; i++)
        if (s->depth[i].n == 0)
            return false;
    return true;
}

int stats_set_depth(struct stats *s, uint32_t layer, enum side side, double kl, double D)
{
    if (layer >= s->o.geometry.n_layers || !isfinite(kl) || !isfinite(D) || D < 0)
        return -EINVAL;

    s->has_file_digest = false;
    s->depth[layer * 2 + side] = (struct depth_sums){.kl = kl > 0 ? kl : 0, .D = D, .n = 1};
    return 0;
}

int stats_get_depth(const struct stats *s, uint32_t layer, enum side side, double *ret_kl, double *ret_D)
{
    const struct depth_sums *m = &s->depth[layer * 2 + side];

    if (m->n == 0)
        return -ENODATA;

    *ret_kl = m->kl / (double) m->n;
    *ret_D = m->D / (double) m->n;
    return 0;
}
