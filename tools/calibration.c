/* Statistics of exact passes; see calibration.h. */
#include "tools/calibration.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/backward.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/progress.h"

/* A window on its way through the model: forward through all layers, and perhaps back. */
struct pass {
    struct stats *s;
    const struct corpus *c;
    struct progress *p;
    struct errmsg *e;
    size_t window;        /* which one */
    size_t n_embd;
    float *residual;      /* [window] mean squares of the residual stream; NULL: not wanted */
    uint32_t n_layers;
    double forward_share; /* of the work of a window */
};

static void update_progress(const struct pass *t, double share)
{
    progress_update(t->p, (double) t->c->window * ((double) t->window + share));
}

static void mean_squares(const float *hidden, size_t n, size_t n_embd, float *ret)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;

        for (size_t j = 0; j < n_embd; j++)
            sum += (double) hidden[i * n_embd + j] * (double) hidden[i * n_embd + j];
        ret[i] = (float) (sum / (double) n_embd);
    }
}

static int take_layer(void *ctx, uint32_t layer, size_t n, const float *q, const float *k, const float *v,
                      const float *hidden)
{
    struct pass *t = ctx;

    if (t->residual)
        mean_squares(hidden, n, t->n_embd, t->residual);
    update_progress(t, t->forward_share * (double) (layer + 1) / t->n_layers);
    return stats_add_layer(t->s, t->c->documents[t->window], 0, layer, n, q, k, v, t->residual, t->e);
}

/* The sinks' gradients are left out like everything else of theirs. */
static int take_gradients(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv)
{
    struct pass *t = ctx;
    const struct stats_options *o = stats_get_options(t->s);
    size_t sinks = o->n_sink < n ? o->n_sink : n, skip = sinks * o->geometry.n_kv_heads * o->geometry.d;
    int r = stats_add_fisher(t->s, layer, SIDE_K, n - sinks, dk + skip, t->e);

    update_progress(t, 1 - (1 - t->forward_share) * (double) layer / t->n_layers);
    return r < 0 ? r : stats_add_fisher(t->s, layer, SIDE_V, n - sinks, dv + skip, t->e);
}

static int set_projections(struct engine *en, struct stats *s, struct errmsg *e)
{
    const struct geometry *g = engine_geometry(en);
    uint32_t n_embd = engine_info(en)->n_embd;
    _cleanup_(freep) float *wo = malloc((size_t) n_embd * g->n_heads * g->d * sizeof(*wo));
    int r = wo ? 0 : fail(e, -ENOMEM, "out of memory for an output projection");

    for (uint32_t layer = 0; r == 0 && layer < g->n_layers; layer++) {
        r = engine_output_projection(en, layer, wo, e);
        if (r == 0)
            r = stats_set_output_projection(s, layer, wo, n_embd, e);
    }
    return r;
}

static int run_forward(struct engine *en, struct pass *t)
{
    _cleanup_(exact_cache_freep) struct exact_cache *exact = NULL;
    _cleanup_(freep) float *hidden = malloc(t->c->window * engine_info(en)->n_embd * sizeof(*hidden));
    struct kv_cache cache;
    int r = hidden ? 0 : fail(t->e, -ENOMEM, "out of memory for windows of %zu tokens", t->c->window);

    if (r == 0)
        r = exact_cache_new(engine_geometry(en), t->c->window, &exact, t->e);
    if (r < 0)
        return r;
    cache = exact_cache_ops(exact);
    for (t->window = 0; r == 0 && t->window < t->c->n_windows; t->window++) {
        exact_cache_clear(exact);
        r = engine_embed(en, corpus_window(t->c, t->window), t->c->window, hidden, t->e);
        if (r == 0)
            r = engine_layers(en, &cache, 0, t->n_layers, t->c->window, hidden, t->e);
    }
    return r;
}

static int run_both_ways(struct engine *en, struct pass *t, uint64_t seed)
{
    _cleanup_(backward_freep) struct backward *b = NULL;
    _cleanup_(freep) uint32_t *labels = malloc(t->c->window * sizeof(*labels));
    int r = labels ? 0 : fail(t->e, -ENOMEM, "out of memory for windows of %zu tokens", t->c->window);

    if (r == 0)
        r = backward_new(en, t->c->window, &b, t->e);
    for (t->window = 0; r == 0 && t->window < t->c->n_windows; t->window++) {
        struct sampler_state sampler;

        sampler_seed(&sampler, seed ^ t->c->documents[t->window]);
        r = backward_run(b, corpus_window(t->c, t->window), t->c->window, &sampler, labels, take_gradients, t, t->e);
    }
    return r;
}

int calibrate_windows(struct engine *en, struct stats *s, const struct corpus *c, bool gradients, uint64_t seed,
                      struct progress *p, struct errmsg *e)
{
    const struct stats_options *o = stats_get_options(s);
    _cleanup_(freep) float *residual = o->want_output ? malloc(c->window * sizeof(*residual)) : NULL;
    struct pass t = {
        .n_embd = engine_info(en)->n_embd, .residual = residual, .s = s, .c = c, .p = p, .e = e, .n_layers = engine_geometry(en)->n_layers,
        .forward_share = gradients ? 0.3 : 1,
    };
    int r = o->want_output && !residual ? fail(e, -ENOMEM, "out of memory for windows of %zu tokens", c->window) : 0;

    if (r == 0 && (o->want_attention || o->want_output))
        r = set_projections(en, s, e);
    if (r < 0)
        return r;
    engine_set_tap(en, take_layer, &t);
    r = gradients ? run_both_ways(en, &t, seed) : run_forward(en, &t);
    engine_set_tap(en, NULL, NULL);
    return r;
}
