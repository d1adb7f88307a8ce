/*
 * Depth weights: the KL of the output per unit of distortion, under the attention metric, of one layer and
 * side. See calibration.h and DESIGN 3.1.
 *
 * The exact pass stores the hidden states before each layer, so that a measurement runs only from the changed
 * layer on; and the exact distribution of every position, so that a KL takes one exponential per token of the
 * vocabulary.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/solve/depth.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/cache_layer.h"
#include "tools/calibrate/calibration.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "base/threads.h"

enum { LOGIT_ROWS = 256 }; /* positions whose logits are held at a time */

struct depth_run {
    struct engine *en;
    struct stats *s;
    struct progress *p;
    uint64_t seed;
    uint32_t n_layers;
    size_t n_max, n, n_embd, n_vocab; /* tokens: most of a window, of the current window */
    struct layer_cache *cache;
    struct threads *threads;
    float *states;          /* [n_layers, n_max, n_embd] hidden states before each layer, exact */
    float *hidden;          /* [n_max, n_embd] */
    float *logits;          /* [LOGIT_ROWS, n_vocab] */
    float *exact;           /* [n_max, n_vocab] probabilities */
    double *entropy;        /* [n_max] sum of p log p */
    double *kl;             /* [LOGIT_ROWS] of the current block */
    double *sum_kl, *sum_D; /* [n_layers, 2] over all tokens; over all but sinks */
    double tokens, counted; /* their numbers */
    double work;            /* layers run, for the progress line */
};

static size_t depth_tokens(size_t window)
{
    return window < DEPTH_TOKENS ? window : DEPTH_TOKENS;
}

uint64_t calibration_depth_bytes(const struct engine *en, size_t window)
{
    const struct engine_info *info = engine_info(en);
    const struct geometry *g = engine_geometry(en);
    uint64_t n = depth_tokens(window), kv = (uint64_t) g->n_kv_heads * g->d;

    return sizeof(float) * (n * info->n_embd * (g->n_layers + 1ull) + (n + LOGIT_ROWS) * info->n_vocab +
                            n * kv * (2ull * g->n_layers + 2));
}

static void depth_run_deinit(struct depth_run *d)
{
    (void) layer_cache_free(d->cache);
    (void) threads_free(d->threads);
    free(d->states);
    free(d->hidden);
    free(d->logits);
    free(d->exact);
    free(d->entropy);
    free(d->kl);
    free(d->sum_kl);
}

static int depth_run_init(struct depth_run *d, struct engine *en, struct stats *s, size_t window,
                          struct errmsg *e)
{
    const struct geometry *g = engine_geometry(en);
    int r;

    *d = (struct depth_run){.en = en,
                            .s = s,
                            .n_layers = g->n_layers,
                            .n_max = depth_tokens(window),
                            .n_embd = engine_info(en)->n_embd,
                            .n_vocab = engine_info(en)->n_vocab};
    d->states = malloc(d->n_layers * d->n_max * d->n_embd * sizeof(float));
    d->hidden = malloc(d->n_max * d->n_embd * sizeof(float));
    d->logits = malloc(LOGIT_ROWS * d->n_vocab * sizeof(float));
    d->exact = malloc(d->n_max * d->n_vocab * sizeof(float));
    d->entropy = malloc(d->n_max * sizeof(double));
    d->kl = malloc(LOGIT_ROWS * sizeof(double));
    d->sum_kl = calloc((size_t) d->n_layers * 4, sizeof(double));
    if (!d->states || !d->hidden || !d->logits || !d->exact || !d->entropy || !d->kl || !d->sum_kl)
        return fail(e, -ENOMEM, "out of memory: depth weights need %llu MiB",
                    (unsigned long long) (calibration_depth_bytes(en, window) >> 20));

    d->sum_D = d->sum_kl + d->n_layers * 2;
    r = threads_new(0, &d->threads, e);
    return r < 0 ? r : layer_cache_new(g, d->n_max, stats_get_options(s)->n_sink, &d->cache, e);
}

/* log sum exp of a row; the exponentials in binary32, their sum in binary64. @ret_exp [n] exp(x - max), or
 * NULL. */
static double calibration_depth_log_sum(const float *x, size_t n, float *ret_exp, double *ret_sum)
{
    float max = x[0];
    double sum = 0;

    for (size_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) {
        float v = expf(x[i] - max);

        sum += (double) v;
        if (ret_exp)
            ret_exp[i] = v;
    }

    *ret_sum = sum;
    return (double) max + log(sum);
}

struct calibration_depth_block {
    struct depth_run *d;
    size_t first; /* position of logits row 0 */
};

/* Probabilities and sum p log p of one position. p log p = p (x - log sum exp). */
static void calibration_depth_store_exact(void *ctx, size_t row, unsigned worker)
{
    const struct calibration_depth_block *b = ctx;
    struct depth_run *d = b->d;
    const float *x = d->logits + row * d->n_vocab;
    float *p = d->exact + (b->first + row) * d->n_vocab;
    double sum, log_z = calibration_depth_log_sum(x, d->n_vocab, p, &sum), entropy = 0;
    float scale = (float) (1 / sum);

    (void) worker;
    for (size_t i = 0; i < d->n_vocab; i++) {
        p[i] *= scale;
        entropy += (double) p[i] * ((double) x[i] - log_z);
    }

    d->entropy[b->first + row] = entropy;
}

/* KL(p || q) = sum p log p - sum p (y - log sum exp y), y the changed model's logits. */
static void calibration_depth_measure_kl(void *ctx, size_t row, unsigned worker)
{
    const struct calibration_depth_block *b = ctx;
    struct depth_run *d = b->d;
    const float *y = d->logits + row * d->n_vocab, *p = d->exact + (b->first + row) * d->n_vocab;
    double sum, log_z = calibration_depth_log_sum(y, d->n_vocab, NULL, &sum), cross = 0;

    (void) worker;
    for (size_t i = 0; i < d->n_vocab; i++)
        cross += (double) p[i] * ((double) y[i] - log_z);
    d->kl[row] = d->entropy[b->first + row] - cross;
}

/* Runs the head over d->hidden in blocks, @each on every position. Returns the summed d->kl in @ret_kl if not
 * NULL. */
static int calibration_depth_each_position(struct depth_run *d, threads_item each, double *ret_kl,
                                           struct errmsg *e)
{
    double sum = 0;

    for (size_t first = 0; first < d->n; first += LOGIT_ROWS) {
        size_t rows = d->n - first < LOGIT_ROWS ? d->n - first : LOGIT_ROWS;
        struct calibration_depth_block b = {d, first};
        int r = engine_logits(d->en, rows, d->hidden + first * d->n_embd, d->logits, e);

        if (r < 0)
            return r;

        threads_run(d->threads, each, &b, rows);
        for (size_t i = 0; ret_kl && i < rows; i++)
            sum += d->kl[i];
    }

    if (ret_kl)
        *ret_kl = sum;
    return 0;
}

/* The exact pass, with which the others are compared. */
static int calibration_depth_run_exact(struct depth_run *d, const uint32_t *tokens, struct errmsg *e)
{
    struct kv_cache cache = layer_cache_ops(d->cache);
    int r = engine_embed(d->en, tokens, d->n, d->hidden, e);

    layer_cache_start(d->cache, NULL, 0, SIDE_K);
    for (uint32_t layer = 0; r == 0 && layer < d->n_layers; layer++) {
        memcpy(d->states + layer * d->n_max * d->n_embd, d->hidden, d->n * d->n_embd * sizeof(float));
        r = engine_layers(d->en, &cache, layer, layer + 1, d->n, d->hidden, e);
    }

    return r < 0 ? r : calibration_depth_each_position(d, calibration_depth_store_exact, NULL, e);
}

static int calibration_depth_measure(struct depth_run *d, uint32_t layer, enum side side, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct kv_cache cache = layer_cache_ops(d->cache);
    size_t n_bytes, n, width = (size_t) engine_geometry(d->en)->n_kv_heads * engine_geometry(d->en)->d;
    const float *x, *x_hat;
    double kl, D;
    int r = depth_layer_table(d->s, layer, side, side == SIDE_K ? DEPTH_K_BPD : DEPTH_V_BPD, d->seed, &bytes,
                              &n_bytes, e);

    if (r == 0)
        r = table_parse(bytes, n_bytes, &table, e);
    if (r < 0)
        return r;

    layer_cache_start(d->cache, table, layer, side);
    memcpy(d->hidden, d->states + layer * d->n_max * d->n_embd, d->n * d->n_embd * sizeof(float));
    r = engine_layers(d->en, &cache, layer, d->n_layers, d->n, d->hidden, e);
    if (r < 0)
        return r;

    r = calibration_depth_each_position(d, calibration_depth_measure_kl, &kl, e);
    if (r < 0)
        return r;

    layer_cache_vectors(d->cache, &x, &x_hat, &n);
    D = depth_distortion(d->s, layer, side, x, x_hat, n, width);
    if (isnan(D))
        return fail(e, -ENOMEM, "out of memory for the distortion of layer %u", layer);

    d->sum_kl[layer * 2 + side] += kl;
    d->sum_D[layer * 2 + side] += D * (double) n;
    return 0;
}

static int calibration_depth_measure_window(struct depth_run *d, const struct calibration *cal, size_t window,
                                            double all_work, struct errmsg *e)
{
    uint32_t n_sink = stats_get_options(d->s)->n_sink;
    int r;

    d->n = depth_tokens(corpus_length(cal->corpus, window));
    d->tokens += (double) d->n;
    d->counted += (double) (d->n > n_sink ? d->n - n_sink : 0);
    r = calibration_depth_run_exact(d, corpus_window(cal->corpus, window), e);
    d->work += d->n_layers;
    for (uint32_t layer = 0; r == 0 && layer < d->n_layers; layer++)
        for (int side = SIDE_K; r == 0 && side <= SIDE_V; side++) {
            progress_update(d->p, d->work / all_work);
            if (cal->stop && cal->stop())
                return CALIBRATION_STOPPED;

            r = calibration_depth_measure(d, layer, (enum side) side, e);
            d->work += d->n_layers - layer;
        }
    return r;
}

int calibration_measure_depth(struct calibration *cal, struct errmsg *e)
{
    _cleanup_(depth_run_deinit) struct depth_run d = {0};
    const struct corpus *c = cal->corpus;
    double all_work;
    struct stats *sums = cal->stats->sums; /* depth weights are not in the public header */
    int r = depth_run_init(&d, cal->en, sums, c->window, e);

    if (r == 0 && stats_sort_samples(sums) < 0)
        r = fail(e, -ENOMEM, "out of memory for the order of samples");
    d.p = cal->progress;
    d.seed = cal->seed;
    all_work = (double) c->n_held * d.n_layers * (d.n_layers + 2.0);
    for (size_t i = 0; r == 0 && i < c->n_held; i++)
        r = calibration_depth_measure_window(&d, cal, c->n_windows + i, all_work, e);
    for (uint32_t layer = 0; r == 0 && layer < d.n_layers; layer++)
        for (int side = SIDE_K; r == 0 && side <= SIDE_V; side++) {
            double kl = d.sum_kl[layer * 2 + (uint32_t) side] / d.tokens;
            double D = d.sum_D[layer * 2 + (uint32_t) side] / d.counted;

            r = stats_set_depth(sums, layer, (enum side) side, kl, D);
            if (r < 0)
                return fail(e, r, "the depth weight of layer %u %c is not a number: KL %g, distortion %g",
                            layer, side == SIDE_K ? 'K' : 'V', kl, D);
        }
    return r;
}
