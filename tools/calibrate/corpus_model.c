/* Calibration text that the model generates; see corpus.h. */
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/cache_batch.h"
#include "tools/calibrate/corpus.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

struct corpus_model_writer {
    struct engine *en;
    struct batch_cache *cache;
    uint32_t *tokens;  /* [n_sequences] the newest token of each */
    uint32_t *written; /* [n_sequences, window] */
    float *hidden;     /* [n_sequences, n_embd] */
    float *logits;     /* [n_sequences, n_vocab] */
    struct sampler_state sampler;
};

static void corpus_model_writer_deinit(struct corpus_model_writer *w)
{
    (void) batch_cache_free(w->cache);
    free(w->tokens);
    free(w->written);
    free(w->hidden);
    free(w->logits);
}

static size_t corpus_model_count_sequences(const struct corpus_options *o)
{
    return corpus_windows(o->n_tokens, o->window) + (o->want_held ? corpus_held(o->window) : 0);
}

uint64_t corpus_model_bytes(const struct engine *en, const struct corpus_options *o)
{
    size_t n = corpus_model_count_sequences(o);

    return batch_cache_bytes(engine_geometry(en), n, o->window) +
           (uint64_t) n * (engine_info(en)->n_vocab + engine_info(en)->n_embd + o->window) * sizeof(float);
}

static int corpus_model_writer_init(struct corpus_model_writer *w, size_t n_sequences, size_t window,
                                    uint64_t seed, struct errmsg *e)
{
    const struct engine_info *info = engine_info(w->en);

    w->tokens = calloc(n_sequences, sizeof(*w->tokens));
    w->written = calloc(n_sequences * window, sizeof(*w->written));
    w->hidden = malloc(n_sequences * info->n_embd * sizeof(float));
    w->logits = malloc(n_sequences * info->n_vocab * sizeof(float));
    if (!w->tokens || !w->written || !w->hidden || !w->logits)
        return fail(e, -ENOMEM, "out of memory for generating %zu texts", n_sequences);

    sampler_seed(&w->sampler, seed);
    return batch_cache_new(engine_geometry(w->en), n_sequences, window, &w->cache, e);
}

/*
 * Samples a first token. Vocabularies are built by merging the most frequent pairs first, so the number of a
 * token is about its rank by frequency, and by Zipf's law p ~ 1 / (number + offset). The offset reduces the
 * weight of the first tokens: single bytes, which are frequent only inside words.
 */
static uint32_t corpus_model_begin(struct corpus_model_writer *w, size_t n_vocab)
{
    const struct engine_info *info = engine_info(w->en);
    const float offset = 1000;

    for (size_t i = 0; i < n_vocab; i++)
        w->logits[i] = -logf((float) i + offset);
    if (info->token_bos < n_vocab)
        w->logits[info->token_bos] = -1e30f;
    if (info->token_eos < n_vocab)
        w->logits[info->token_eos] = -1e30f;
    return sampler_softmax(w->logits, n_vocab, 1.0f, &w->sampler);
}

/* Runs w->tokens, one token of every sequence, through the model, and replaces them by sampled ones. */
static int corpus_model_write_step(struct corpus_model_writer *w, size_t n_sequences, struct errmsg *e)
{
    const struct engine_info *info = engine_info(w->en);
    struct kv_cache cache = batch_cache_ops(w->cache);
    int r;

    r = engine_embed(w->en, w->tokens, n_sequences, w->hidden, e);
    if (r < 0)
        return r;

    r = engine_layers(w->en, &cache, 0, engine_geometry(w->en)->n_layers, n_sequences, w->hidden, e);
    if (r < 0)
        return r;

    r = engine_logits(w->en, n_sequences, w->hidden, w->logits, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n_sequences; i++) {
        float *logits = w->logits + i * info->n_vocab;

        if (info->token_bos < info->n_vocab)
            logits[info->token_bos] = -1e30f;
        if (info->token_eos < info->n_vocab)
            logits[info->token_eos] = -1e30f;
        w->tokens[i] = sampler_softmax(logits, info->n_vocab, 1.0f, &w->sampler);
    }

    return 0;
}

static int corpus_model_write_all(struct corpus_model_writer *w, size_t n, size_t window, struct progress *p,
                                  struct errmsg *e)
{
    uint32_t bos = corpus_bos(w->en);
    size_t first = bos != UINT32_MAX;
    int r = 0;

    for (size_t t = 0; r == 0 && t < window; t++) {
        for (size_t i = 0; i < n; i++) {
            if (t < first)
                w->tokens[i] = bos;
            else if (t == first)
                w->tokens[i] = corpus_model_begin(w, engine_info(w->en)->n_vocab);
            w->written[i * window + t] = w->tokens[i];
        }

        if (t + 1 < window)
            r = corpus_model_write_step(w, n, e);
        progress_update(p, (double) ((t + 1) * n));
    }

    return r;
}

int corpus_from_model(struct engine *en, const struct corpus_options *o, struct progress *p,
                      struct corpus *ret_corpus, struct errmsg *e)
{
    size_t n = corpus_model_count_sequences(o), n_held = o->want_held ? corpus_held(o->window) : 0;
    size_t n_counted = (n - n_held) * o->window;
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(corpus_model_writer_deinit) struct corpus_model_writer w = {.en = en};
    int r;

    r = corpus_init(&c, o->window, n, n * o->window, 1, e);
    if (r < 0)
        return r;

    r = corpus_model_writer_init(&w, n, o->window, o->seed, e);
    if (r < 0)
        return r;

    r = corpus_model_write_all(&w, n, o->window, p, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++)
        corpus_add(&c, UINT32_MAX, w.written + i * o->window, o->window, i);
    c.n_windows -= n_held;
    c.n_held = n_held;
    c.n_sources = 1;
    c.sources[0] = (struct stats_source){
        .bytes = n * o->window * sizeof(*w.written),
        .tokens = n_counted,
        .windows = n - n_held,
        .window = (uint32_t) o->window,
        .kind = SOURCE_MODEL,
    };
    (void) crypto_hash_sha256(c.sources[0].digest, (const uint8_t *) w.written, c.sources[0].bytes);
    *ret_corpus = c;
    c = (struct corpus){0};
    return 0;
}
