/* Statistics of exact passes; see calibration.h. */
#include "tools/calibration.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"
#include "tools/progress.h"

struct tap {
    struct stats *s;
    uint64_t document;
    struct errmsg *e;
};

static int take_layer(void *ctx, uint32_t layer, size_t n, const float *q, const float *k, const float *v)
{
    struct tap *t = ctx;

    return stats_add_layer(t->s, t->document, 0, layer, n, q, k, v, t->e);
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

static int run_windows(struct engine *en, struct exact_cache *exact, const struct corpus *c, float *hidden,
                       struct tap *tap, struct progress *p, struct errmsg *e)
{
    uint32_t n_layers = engine_geometry(en)->n_layers;
    struct kv_cache cache = exact_cache_ops(exact);

    for (size_t i = 0; i < c->n_windows; i++) {
        int r = engine_embed(en, corpus_window(c, i), c->window, hidden, e);

        exact_cache_clear(exact);
        tap->document = c->documents[i];
        for (uint32_t layer = 0; r == 0 && layer < n_layers; layer++) {
            r = engine_layers(en, &cache, layer, layer + 1, c->window, hidden, e);
            progress_update(p, (double) c->window * ((double) i + (double) (layer + 1) / n_layers));
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int calibrate_windows(struct engine *en, struct stats *s, const struct corpus *c, struct progress *p, struct errmsg *e)
{
    _cleanup_(exact_cache_freep) struct exact_cache *exact = NULL;
    _cleanup_(freep) float *hidden = malloc(c->window * engine_info(en)->n_embd * sizeof(*hidden));
    struct tap tap = { .s = s, .e = e };
    int r = hidden ? 0 : fail(e, -ENOMEM, "out of memory for windows of %zu tokens", c->window);

    if (r == 0)
        r = exact_cache_new(engine_geometry(en), c->window, &exact, e);
    if (r == 0 && stats_get_options(s)->want_attention)
        r = set_projections(en, s, e);
    if (r < 0)
        return r;
    engine_set_tap(en, take_layer, &tap);
    r = run_windows(en, exact, c, hidden, &tap, p, e);
    engine_set_tap(en, NULL, NULL);
    return r;
}
