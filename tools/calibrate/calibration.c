/* Statistics of exact passes; see calibration.h. */
#include "tools/calibrate/calibration.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/moments/moments.h"
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
    uint32_t n_sink; /* moments */
    bool want_residual;
    double forward_share; /* of the work of a window */
    size_t n_embd;
};

static void calibration_update_progress(const struct calibration_pass *t, double share)
{
    const struct corpus *c = t->cal->corpus;

    progress_update(t->cal->progress, (double) corpus_start(c, t->cal->n_done) +
                                          share * (double) corpus_length(c, t->cal->n_done));
}

static int calibration_fail(const struct calibration *cal, int err, struct errmsg *e)
{
    return fail(e, err, "%s", kvc_alloc_error(cal->alloc));
}

/* Every window starts a sequence, so the first tokens of a window are sinks. kvc_stats_add_layer() and
 * kvc_stats_add_gradients() skip sinks themselves. */
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

    kvc_stats_layer x = {
        .struct_bytes = sizeof(x),
        .document = cal->corpus->documents[cal->n_done],
        .layer = layer,
        .dtype = KVC_F32,
        .n = n,
        .q = q,
        .k = k,
        .v = v,
        .residual = t->want_residual ? hidden : NULL,
        .n_embd = t->n_embd,
    };
    int r;

    calibration_update_progress(t, t->forward_share * (double) (layer + 1) / t->n_layers);
    if (cal->moments)
        return calibration_add_moments(t, layer, n, k, v);

    r = kvc_stats_add_layer(cal->stats, &x);
    return r < 0 ? calibration_fail(cal, r, t->e) : 0;
}

static int calibration_on_gradients(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv)
{
    struct calibration_pass *t = ctx;
    kvc_stats_gradients x = {.struct_bytes = sizeof(x), .layer = layer, .dtype = KVC_F32, .n = n};
    int r;

    calibration_update_progress(t, 1 - (1 - t->forward_share) * (double) layer / t->n_layers);
    x.side = KVC_K;
    x.g = dk;
    r = kvc_stats_add_gradients(t->cal->stats, &x);
    if (r == 0) {
        x.side = KVC_V;
        x.g = dv;
        r = kvc_stats_add_gradients(t->cal->stats, &x);
    }

    return r < 0 ? calibration_fail(t->cal, r, t->e) : 0;
}

static int calibration_set_projections(const struct calibration *cal, struct errmsg *e)
{
    const struct geometry *g = engine_geometry(cal->en);
    uint32_t n_embd = engine_info(cal->en)->n_embd;
    _cleanup_(freep) float *wo = malloc((size_t) n_embd * g->n_heads * g->d * sizeof(*wo));
    int r;

    if (!wo)
        return fail(e, -ENOMEM, "out of memory for an output projection");

    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        kvc_stats_projection p = {
            .struct_bytes = sizeof(p), .layer = layer, .dtype = KVC_F32, .wo = wo, .n_embd = n_embd};

        r = engine_output_projection(cal->en, layer, wo, e);
        if (r < 0)
            return r;

        r = kvc_stats_set_output_projection(cal->stats, &p);
        if (r < 0)
            return calibration_fail(cal, r, e);
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

/* Names the source of the next window. */
static int calibration_begin_source(const struct calibration *cal, struct errmsg *e)
{
    uint32_t number = cal->corpus->source_of[cal->n_done];
    const struct stats_source *source = &cal->corpus->sources[number];
    bool apart = corpus_is_apart(cal->corpus, number);
    int r;

    if (!cal->stats)
        return 0;

    r = kvc_stats_begin_source(cal->stats, apart ? source->kind : (uint32_t) KVC_SOURCE_REST,
                               cal->corpus->names[number]);
    return r < 0 ? calibration_fail(cal, r, e) : 0;
}

static int calibration_run_windows(struct calibration *cal, struct calibration_pass *t,
                                   const struct calibration_memory *w)
{
    int r = 0;

    for (; cal->n_done < cal->corpus->n_windows; cal->n_done++) {
        if (cal->stop && cal->stop())
            return CALIBRATION_STOPPED;

        r = calibration_begin_source(cal, t->e);
        if (r == 0)
            r = calibration_run_window(w, t);
        if (r != 0)
            return r;
    }

    return 0;
}

int calibration_add_windows(struct calibration *cal, struct errmsg *e)
{
    _cleanup_(calibration_memory_deinit) struct calibration_memory memory = {0};
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    struct calibration_pass t = {
        .cal = cal,
        .e = e,
        .n_layers = engine_geometry(cal->en)->n_layers,
        .forward_share = cal->gradients ? 0.3 : 1,
        .n_embd = engine_info(cal->en)->n_embd,
    };
    int r;

    if (cal->moments) {
        t.n_sink = moments_get_options(cal->moments)->n_sink;
    } else {
        r = kvc_stats_get_info(cal->stats, &info);
        if (r < 0)
            return calibration_fail(cal, r, e);
    }

    t.want_residual = info.metrics & KVC_WITH_OUTPUT;
    if (info.metrics != 0) {
        r = calibration_set_projections(cal, e);
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

uint64_t calibration_windows_bytes(const struct engine *en, size_t window, bool gradients)
{
    const struct geometry *g = engine_geometry(en);
    uint64_t kv = 2ull * g->n_layers * g->n_kv_heads * g->d, width = engine_info(en)->n_embd;

    return gradients ? backward_bytes(en, window) : sizeof(float) * window * (kv + width);
}
