/* Stores what was measured by passes with a compressed cache: what depth weights are computed from (DESIGN
 * 3.1; metric_depth_weight()), and the KL per distortion. See stats.h. */
#include <errno.h>
#include <math.h>

#include "alloc/stats/stats_internal.h"
#include "base/errmsg.h"

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

int stats_set_kl_per_distortion(struct stats *s, double x, struct errmsg *e)
{
    if (!(x >= 0) || x > STATS_KL_MAX)
        return fail(e, -EINVAL, "a KL of %g per distortion: 0, or more and at most %g", x, STATS_KL_MAX);

    s->has_file_digest = false;
    s->kl_per_distortion = fabs(x); /* never -0: one set of statistics has one encoding */
    return 0;
}

double stats_kl_per_distortion(const struct stats *s)
{
    return s->kl_per_distortion;
}
