/* Statistics of exact passes; see calibration.h. */
#include "tools/calibrate/calibration.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/moments.h"
#include "alloc/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/progress.h"
#include "tools/engine/backward.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

/* One window in a pass through the model. */
struct calibration_pass {
    struct calibration *cal;
    struct errmsg *e;
    uint32_t n_layers;
    uint32_t n_sink;
    double forward_share; /* of the work of a window */
    size_t n_embd;
    float *residual; /* [window] mean squares of the residual stream; NULL: not needed */
};

static void calibration_update_progress(const struct calibration_pass *t, double share)
{
    const struct corpus *c = t->cal->corpus;

    progress_update(t->cal->progress, (double) corpus_start(c, t->cal->n_done) +
                                          share * (double) corpus_length(c, t->cal->n_done));
}

static void calibration_mean_squares(const float *hidden, size_t n, size_t n_embd, float *ret)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;

        for (size_t j = 0; j < n_embd; j++)
            sum += (double) hidden[i * n_embd + j] * (double) hidden[i * n_embd + j];
        ret[i] = (float) (sum / (double) n_embd);
    }
}

/* Every window starts a sequence, so the first tokens of a window are sinks. stats_add_layer() skips sinks
 * itself. */
static int calibration_add_moments(const struct calibration_pass *t, uint32_t layer, size_t n, const float *k,
                                   const float *v)
{
    const struct geometry *g = &moments_get_options(t->cal->moments)->geometry;
    size_t sinks = t->n_sink < n ? t->n_sink : n, skip = sinks * g->n_kv_heads * g->d;

    return moments_add(t->cal->moments, layer, 0, g->n_kv_heads, n - sinks, k + skip, v + skip, t->e);
}

static int calibration_on_layer(void *ctx, uint32_t layer, size_t n, const float *q, const float *k,
                                const float *v, const float *hidden)
{
    struct calibration_pass *t = ctx;
    struct calibration *cal = t->cal;

    if (t->residual)
        calibration_mean_squares(hidden, n, t->n_embd, t->residual);
    calibration_update_progress(t, t->forward_share * (double) (layer + 1) / t->n_layers);
    if (cal->moments)
        return calibration_add_moments(t, layer, n, k, v);

    return stats_add_layer(cal->stats, cal->corpus->documents[cal->n_done], 0, layer, n, q, k, v, t->residual,
                           t->e);
}

/* Sinks are not measured, so their gradients are skipped. */
static int calibration_on_gradients(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv)
{
    struct calibration_pass *t = ctx;
    const struct stats_options *o = stats_get_options(t->cal->stats);
    size_t sinks = t->n_sink < n ? t->n_sink : n, skip = sinks * o->geometry.n_kv_heads * o->geometry.d;
    int r = stats_add_fisher(t->cal->stats, layer, SIDE_K, n - sinks, dk + skip, t->e);

    calibration_update_progress(t, 1 - (1 - t->forward_share) * (double) layer / t->n_layers);
    return r < 0 ? r : stats_add_fisher(t->cal->stats, layer, SIDE_V, n - sinks, dv + skip, t->e);
}

static int calibration_set_projections(struct engine *en, struct stats *s, struct errmsg *e)
{
    const struct geometry *g = engine_geometry(en);
    uint32_t n_embd = engine_info(en)->n_embd;
    _cleanup_(freep) float *wo = malloc((size_t) n_embd * g->n_heads * g->d * sizeof(*wo));
    int r;

    if (!wo)
        return fail(e, -ENOMEM, "out of memory for an output projection");

    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        r = engine_output_projection(en, layer, wo, e);
        if (r < 0)
            return r;

        r = stats_set_output_projection(s, layer, wo, n_embd, e);
        if (r < 0)
            return r;
    }

    return 0;
}

/* Memory of a pass: for the forward pass alone, or with gradients. */
struct calibration_memory {
    struct exact_cache *exact; /* forward alone */
    float *hidden;
    struct backward *backward; /* with gradients */
    uint32_t *labels;
};

static void calibration_memory_deinit(struct calibration_memory *w)
{
    (void) exact_cache_free(w->exact);
    (void) backward_free(w->backward);
    free(w->hidden);
    free(w->labels);
}

static int calibration_memory_init(struct calibration_memory *w, const struct calibration *cal,
                                   struct errmsg *e)
{
    size_t n = cal->corpus->window;

    if (cal->gradients) {
        w->labels = malloc(n * sizeof(*w->labels));
        if (!w->labels)
            return fail(e, -ENOMEM, "out of memory for windows of %zu tokens", n);

        return backward_new(cal->en, n, &w->backward, e);
    }

    w->hidden = malloc(n * engine_info(cal->en)->n_embd * sizeof(*w->hidden));
    if (!w->hidden)
        return fail(e, -ENOMEM, "out of memory for windows of %zu tokens", n);

    return exact_cache_new(engine_geometry(cal->en), n, &w->exact, e);
}

static int calibration_run_window(const struct calibration_memory *w, struct calibration_pass *t)
{
    const struct calibration *cal = t->cal;
    const uint32_t *tokens = corpus_window(cal->corpus, cal->n_done);
    size_t n = corpus_length(cal->corpus, cal->n_done);
    struct kv_cache cache;
    int r;

    if (cal->gradients) {
        struct sampler_state sampler;

        sampler_seed(&sampler, cal->seed ^ cal->corpus->documents[cal->n_done]);
        return backward_run(w->backward, tokens, n, &sampler, w->labels, calibration_on_gradients, t, t->e);
    }

    cache = exact_cache_ops(w->exact);
    exact_cache_clear(w->exact);
    r = engine_embed(cal->en, tokens, n, w->hidden, t->e);
    return r < 0 ? r : engine_layers(cal->en, &cache, 0, t->n_layers, n, w->hidden, t->e);
}

static int calibration_run_windows(struct calibration *cal, struct calibration_pass *t,
                                   const struct calibration_memory *w)
{
    int r = 0;

    for (; cal->n_done < cal->corpus->n_windows; cal->n_done++) {
        if (cal->stop && cal->stop())
            return CALIBRATION_STOPPED;

        r = calibration_run_window(w, t);
        if (r != 0)
            return r;
    }

    return 0;
}

int calibration_add_windows(struct calibration *cal, struct errmsg *e)
{
    const struct stats_options *o = cal->stats ? stats_get_options(cal->stats) : NULL;
    bool output = o && o->want_output;
    _cleanup_(freep) float *residual = output ? malloc(cal->corpus->window * sizeof(*residual)) : NULL;
    _cleanup_(calibration_memory_deinit) struct calibration_memory memory = {0};
    struct calibration_pass t = {
        .cal = cal,
        .e = e,
        .n_layers = engine_geometry(cal->en)->n_layers,
        .residual = residual,
        .n_sink = o ? o->n_sink : moments_get_options(cal->moments)->n_sink,
        .forward_share = cal->gradients ? 0.3 : 1,
        .n_embd = engine_info(cal->en)->n_embd,
    };
    int r;

    if (output && !residual)
        return fail(e, -ENOMEM, "out of memory for windows of %zu tokens", cal->corpus->window);

    if (o && (o->want_attention || output)) {
        r = calibration_set_projections(cal->en, cal->stats, e);
        if (r < 0)
            return r;
    }

    r = calibration_memory_init(&memory, cal, e);
    if (r < 0)
        return r;

    engine_set_tap(cal->en, calibration_on_layer, &t);
    r = calibration_run_windows(cal, &t, &memory);
    engine_set_tap(cal->en, NULL, NULL);
    return r;
}

uint64_t calibration_windows_bytes(const struct engine *en, const struct stats_options *o, size_t window,
                                   bool gradients)
{
    const struct geometry *g = engine_geometry(en);
    uint64_t kv = 2ull * g->n_layers * g->n_kv_heads * g->d, width = engine_info(en)->n_embd;
    uint64_t cache = sizeof(float) * window * (kv + width);

    return (gradients ? backward_bytes(en, window) : cache) + stats_window_bytes(o, window);
}
