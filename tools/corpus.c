/* Windows of tokens to calibrate on, from a text or from the model itself; see calibration.h. */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/cache_batch.h"
#include "tools/calibration.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/progress.h"

size_t corpus_windows(size_t n_tokens, size_t window)
{
    return (n_tokens + window - 1) / window;
}

size_t corpus_held(size_t window)
{
    return (DEPTH_TOKENS + window - 1) / window;
}

void corpus_deinit(struct corpus *c)
{
    free(c->tokens);
    free(c->documents);
    *c = (struct corpus) { 0 };
}

static int corpus_init(struct corpus *c, size_t window, size_t n_windows, size_t n_held, struct errmsg *e)
{
    *c = (struct corpus) { .window = window, .n_windows = n_windows, .n_held = n_held };
    c->tokens = calloc((n_windows + n_held) * window, sizeof(*c->tokens));
    c->documents = calloc(n_windows + n_held, sizeof(*c->documents));
    if (!c->tokens || !c->documents)
        return fail(e, -ENOMEM, "out of memory for %zu windows of %zu tokens", n_windows + n_held, window);
    return 0;
}

/* A window's name: a hash of its tokens and its place, so that statistics of different texts can be merged and those
 * of the same text cannot be counted twice. */
static void name_windows(struct corpus *c)
{
    for (size_t i = 0; i < c->n_windows + c->n_held; i++) {
        uint8_t hash[crypto_generichash_BYTES_MIN];
        crypto_generichash_state state;
        uint64_t place = i;

        (void) crypto_generichash_init(&state, NULL, 0, crypto_generichash_BYTES_MIN);
        (void) crypto_generichash_update(&state, (const uint8_t *) &place, sizeof(place));
        (void) crypto_generichash_update(&state, (const uint8_t *) corpus_window(c, i),
                                         c->window * sizeof(*c->tokens));
        (void) crypto_generichash_final(&state, hash, sizeof(hash));
        memcpy(&c->documents[i], hash, sizeof(c->documents[i]));
    }
}

static size_t bos_tokens(const struct engine *en)
{
    const struct engine_info *info = engine_info(en);

    return info->add_bos && info->token_bos < info->n_vocab ? 1 : 0;
}

int corpus_from_text(const struct engine *en, const uint32_t *tokens, size_t n, size_t n_tokens, size_t window,
                     bool want_held, struct corpus *ret_corpus, struct errmsg *e)
{
    _cleanup_(corpus_deinit) struct corpus c = { 0 };
    size_t bos = bos_tokens(en), of_text = window - bos, n_held = want_held ? corpus_held(window) : 0;
    size_t n_windows = corpus_windows(n_tokens, window), available = n / of_text;
    int r;

    if (available < n_held + 1)
        return fail(e, -EINVAL, "the text has %zu tokens; windows of %zu need at least %zu: give more text or a "
                    "smaller --window", n, window, (n_held + 1) * of_text);
    if (n_windows > available - n_held)
        n_windows = available - n_held;
    r = corpus_init(&c, window, n_windows, n_held, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n_windows + n_held; i++) {
        if (bos)
            c.tokens[i * window] = engine_info(en)->token_bos;
        memcpy(c.tokens + i * window + bos, tokens + i * of_text, of_text * sizeof(*tokens));
    }
    name_windows(&c);
    *ret_corpus = c;
    c = (struct corpus) { 0 };
    return 0;
}

/* ---- text that the model writes ------------------------------------------------------------------------------ */

struct writer {
    struct engine *en;
    struct batch_cache *cache;
    uint32_t *tokens;      /* [n_sequences] the newest of each */
    float *hidden;         /* [n_sequences, n_embd] */
    float *logits;         /* [n_sequences, n_vocab] */
    struct sampler_state sampler;
};

static void writer_deinit(struct writer *w)
{
    (void) batch_cache_free(w->cache);
    free(w->tokens);
    free(w->hidden);
    free(w->logits);
}

uint64_t corpus_model_bytes(const struct engine *en, size_t n_tokens, size_t window, bool want_held)
{
    size_t n = corpus_windows(n_tokens, window) + (want_held ? corpus_held(window) : 0);

    return batch_cache_bytes(engine_geometry(en), n, window) + (uint64_t) n * engine_info(en)->n_vocab * sizeof(float);
}

static int writer_init(struct writer *w, size_t n_sequences, size_t window, uint64_t seed, struct errmsg *e)
{
    const struct engine_info *info = engine_info(w->en);

    w->tokens = calloc(n_sequences, sizeof(*w->tokens));
    w->hidden = malloc(n_sequences * info->n_embd * sizeof(float));
    w->logits = malloc(n_sequences * info->n_vocab * sizeof(float));
    if (!w->tokens || !w->hidden || !w->logits)
        return fail(e, -ENOMEM, "out of memory for writing %zu texts", n_sequences);
    sampler_seed(&w->sampler, seed);
    return batch_cache_new(engine_geometry(w->en), n_sequences, window, &w->cache, e);
}

/* Any token of the vocabulary, all alike: the beginnings should differ. */
static uint32_t random_token(struct writer *w, size_t n_vocab)
{
    memset(w->logits, 0, n_vocab * sizeof(float));
    return sample_softmax(w->logits, n_vocab, 1.0f, &w->sampler);
}

/* One token of every sequence through the model, and the next ones drawn: w->tokens advances. */
static int write_step(struct writer *w, size_t n_sequences, struct errmsg *e)
{
    const struct engine_info *info = engine_info(w->en);
    struct kv_cache cache = batch_cache_ops(w->cache);
    int r = engine_embed(w->en, w->tokens, n_sequences, w->hidden, e);

    if (r == 0)
        r = engine_layers(w->en, &cache, 0, engine_geometry(w->en)->n_layers, n_sequences, w->hidden, e);
    if (r == 0)
        r = engine_logits(w->en, n_sequences, w->hidden, w->logits, e);
    for (size_t i = 0; r == 0 && i < n_sequences; i++) {
        float *logits = w->logits + i * info->n_vocab;

        if (info->token_bos < info->n_vocab)
            logits[info->token_bos] = -1e30f;
        if (info->token_eos < info->n_vocab)
            logits[info->token_eos] = -1e30f;
        w->tokens[i] = sample_softmax(logits, info->n_vocab, 1.0f, &w->sampler);
    }
    return r;
}

int corpus_from_model(struct engine *en, size_t n_tokens, size_t window, bool want_held, uint64_t seed,
                      struct progress *p, struct corpus *ret_corpus, struct errmsg *e)
{
    _cleanup_(corpus_deinit) struct corpus c = { 0 };
    _cleanup_(writer_deinit) struct writer w = { .en = en };
    size_t bos = bos_tokens(en), n;
    int r = corpus_init(&c, window, corpus_windows(n_tokens, window), want_held ? corpus_held(window) : 0, e);

    n = c.n_windows + c.n_held;
    if (r == 0)
        r = writer_init(&w, n, window, seed, e);
    for (size_t t = 0; r == 0 && t < window; t++) {
        for (size_t i = 0; i < n; i++) {
            if (t < bos)
                w.tokens[i] = engine_info(en)->token_bos;
            else if (t == bos)
                w.tokens[i] = random_token(&w, engine_info(en)->n_vocab);
            c.tokens[i * window + t] = w.tokens[i];
        }
        if (t + 1 < window)
            r = write_step(&w, n, e);
        progress_update(p, (double) ((t + 1) * n));
    }
    if (r < 0)
        return r;
    name_windows(&c);
    *ret_corpus = c;
    c = (struct corpus) { 0 };
    return 0;
}
