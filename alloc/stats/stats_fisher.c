/* The optional Fisher section: sums of g g', g the gradient of log p(y) by a key or value. DESIGN 3.1. */
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/math/linalg.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int stats_want_fisher(struct stats *s)
{
    size_t dd = (size_t) s->o.geometry.d * s->o.geometry.d;

    if (!s->fisher)
        s->fisher = calloc(head_side_count(&s->o.geometry) * dd, sizeof(double));
    return s->fisher ? 0 : -ENOMEM;
}

uint64_t stats_fisher_bytes(const struct stats_options *o)
{
    return (uint64_t) head_side_count(&o->geometry) * o->geometry.d * o->geometry.d * sizeof(double);
}

int stats_add_fisher(struct stats *s, uint32_t layer, enum side side, size_t n, const float *g,
                     struct errmsg *e)
{
    const struct geometry *geometry = &s->o.geometry;
    size_t d = geometry->d, stride = geometry->n_kv_heads * d;
    _cleanup_(freep) double *rows = calloc(n * d + 1, sizeof(*rows));

    if (layer >= geometry->n_layers)
        return fail(e, -EINVAL, "gradients of layer %u: the model has %u layers", layer, geometry->n_layers);

    for (size_t i = 0; i < n * stride; i++)
        if (!isfinite(g[i]))
            return fail(e, -EINVAL, "a gradient of layer %u head %zu is not finite", layer,
                        i / d % geometry->n_kv_heads);
    if (!rows || stats_want_fisher(s) < 0)
        return fail(e, -ENOMEM, "out of memory for the Fisher metric");

    for (uint32_t h = 0; h < geometry->n_kv_heads; h++) {
        double *sum = s->fisher + (size_t) head_side_index(geometry, layer, h, side) * d * d;

        /* gradients span many orders of magnitude and are few: all in binary64 */
        for (size_t t = 0; t < n; t++)
            for (size_t i = 0; i < d; i++)
                rows[t * d + i] = (double) g[t * stride + h * d + i];
        cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) n, 1.0, rows, (int) d, 1.0, sum,
                    (int) d);
        linalg_mirror(d, sum);
        if (!stats_round_sums(sum, d * d))
            return fail(e, -EINVAL, "the gradients of layer %u head %u are too large for binary32", layer, h);
    }

    s->has_file_digest = false;
    if (layer == 0 && side == SIDE_K) /* the same gradients pass every layer and side: counted once */
        s->n_fisher += n;
    return 0;
}
