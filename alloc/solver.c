/* See solver.h. */
#include "alloc/solver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/metric.h"
#include "alloc/stats_internal.h"
#include "base/errmsg.h"

int solver_init(struct solver *v, const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    int r;

    *v = (struct solver){.s = s, .g = g, .o = *o, .only_layer = ALL_LAYERS};
    r = solve_options_check(s, o, e);
    if (r < 0)
        return r;

    r = curve_model_init(&v->model, o->curve, o->quantiser);
    if (r < 0)
        return fail(e, r, "the quantiser has no levels");

    memcpy(v->levels[SIDE_K], v->model.levels, sizeof(v->model.levels));
    memcpy(v->levels[SIDE_V], v->model.levels, sizeof(v->model.levels));
    if (o->levels_from)
        memcpy(v->levels, o->levels_from->levels, sizeof(v->levels));
    v->heads = calloc(head_side_count(g), sizeof(*v->heads));
    if (!v->heads)
        return fail(e, -ENOMEM, "out of memory for solving");

    for (uint32_t hs = 0; hs < head_side_count(g); hs++) {
        struct head *h = &v->heads[v->n_heads++];
        uint32_t layer = hs / (2 * g->n_kv_heads);

        h->mean = malloc(d * sizeof(*h->mean));
        h->dec = malloc(d * d * sizeof(*h->dec));
        if (!h->mean || !h->dec || transform_init(&h->t, g->d) < 0)
            return fail(e, -ENOMEM, "out of memory for solving");

        memcpy(h->mean, s->mean + hs * d, d * sizeof(*h->mean));
        /* depth weights are KL per unit of the attention metric: they do not apply to other metrics */
        h->weight =
            o->depth_weights && o->metric == METRIC_ATTENTION ? metric_depth_weight(s, layer, hs % 2) : 1;
    }

    return 0;
}

void solver_deinit(struct solver *v)
{
    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        free(v->heads[hs].mean);
        free(v->heads[hs].dec);
        free(v->heads[hs].predict);
        free(v->heads[hs].decoder.mean);
        free(v->heads[hs].decoder.predict);
        free(v->heads[hs].decoder.dec);
        transform_deinit(&v->heads[hs].t);
    }
    free(v->heads);
    *v = (struct solver){.n_heads = 0};
}

int solver_fail(uint32_t layer, uint32_t head, enum side side, int err, struct errmsg *e)
{
    char letter = side == SIDE_K ? 'K' : 'V';

    if (err == -ENOMEM)
        return fail(e, -ENOMEM, "out of memory for layer %u, head %u, side %c", layer, head, letter);

    return fail(e, -EINVAL,
                "layer %u, head %u, side %c: its covariance, metric or samples are too large for a transform",
                layer, head, letter);
}

void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S)
{
    size_t dd = (size_t) v->g->d * v->g->d;
    const double *scatter = v->s->scatter + head_side * dd;

    for (size_t i = 0; i < dd; i++)
        ret_S[i] = scatter[i] / (double) v->s->n_tokens;
}
