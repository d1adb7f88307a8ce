/* Calibration text that the model generates; see corpus.h. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "tools/calibrate/cache_batch.h"
#include "tools/calibrate/corpus.h"
#include "tools/calibrate/corpus_openings.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/engine/tokenizer.h"

/* Documents of at least these tokens and at most as many more. Short ones: what a small model writes far from
 * the beginning repeats itself. */
enum { DOCUMENT_LEAST = 96, DOCUMENT_MORE = 288 };

/* Chosen per document. At 1 text has the model's own distribution; below it is more regular. */
static const float corpus_model_temperatures[] = {0.7f, 0.85f, 1.0f, 1.0f};

enum {
    PIECE_TOKENS = 256,  /* most tokens of a sequence, */
    PIECE_LEAST = 128,   /* and of one if they would be fewer than half of SEQUENCES_MAX */
    SEQUENCES_MAX = 96,  /* in lock step; with more, products with the weights are hardly faster */
    CACHE_MIB_MAX = 1536 /* of the keys and values of all sequences */
};

/* How windows are cut into pieces, the sequences that are written. */
struct corpus_model_plan {
    size_t n_windows, n_pieces; /* of a window */
    size_t n_tokens, piece;     /* of a window and of a piece, without BOS; the last piece is cut off */
    size_t n_at_once;           /* sequences in lock step */
};

/* A sequence that is being written. */
struct corpus_model_sequence {
    size_t number;
    size_t kind;
    bool is_first; /* of its window */
    size_t left;   /* tokens of the current document that are not written yet */
    float temperature;
    struct sampler_state sampler;
    uint32_t *forced; /* [n_forced] tokens of a beginning; malloc'ed */
    size_t n_forced, next_forced;
};

struct corpus_model_writer {
    struct engine *en;
    struct corpus_model_plan plan;
    struct corpus_model_sequence *sequences; /* [plan.n_at_once] */
    size_t n;                                /* in lock step now */
    uint32_t *tokens;                        /* [plan.n_at_once] the newest token of each */
    uint32_t *written;                       /* [plan.n_windows * plan.n_pieces, plan.piece] */
    float *hidden;                           /* [plan.n_at_once, n_embd] */
    float *logits;                           /* [plan.n_at_once, n_vocab] of the token before */
    uint64_t seed;
    struct progress *progress;
    size_t n_written; /* tokens, for the progress */
};

static void corpus_model_free_forced(struct corpus_model_writer *w)
{
    for (size_t i = 0; w->sequences && i < w->plan.n_at_once; i++)
        free(take_ptr(w->sequences[i].forced));
}

static void corpus_model_writer_deinit(struct corpus_model_writer *w)
{
    corpus_model_free_forced(w);
    free(w->sequences);
    free(w->tokens);
    free(w->written);
    free(w->hidden);
    free(w->logits);
}

static size_t corpus_model_divide(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

static struct corpus_model_plan corpus_model_make_plan(const struct engine *en,
                                                       const struct corpus_options *o)
{
    size_t bos = corpus_bos(en) != UINT32_MAX, n, most;
    struct corpus_model_plan p = {.n_windows = corpus_windows(o->n_tokens, o->window) +
                                               (o->want_held ? corpus_held(o->window) : 0),
                                  .n_tokens = o->window - bos};
    uint64_t each;

    p.n_pieces = corpus_model_divide(p.n_tokens, PIECE_TOKENS);
    if (p.n_windows * p.n_pieces < SEQUENCES_MAX / 2)
        p.n_pieces = corpus_model_divide(p.n_tokens, PIECE_LEAST);
    p.piece = corpus_model_divide(p.n_tokens, p.n_pieces);
    n = p.n_windows * p.n_pieces;
    each = batch_cache_bytes(engine_geometry(en), 1, p.piece + bos);
    most = (size_t) (((uint64_t) CACHE_MIB_MAX << 20) / each);
    most = most < SEQUENCES_MAX ? most : SEQUENCES_MAX;
    most = most > 0 ? most : 1;
    p.n_at_once = corpus_model_divide(n, corpus_model_divide(n, most)); /* rounds of equal size */
    return p;
}

uint64_t corpus_model_bytes(const struct engine *en, const struct corpus_options *o)
{
    const struct corpus_model_plan p = corpus_model_make_plan(en, o);
    const struct engine_info *info = engine_info(en);

    return batch_cache_bytes(engine_geometry(en), p.n_at_once, p.piece + 1) +
           (uint64_t) p.n_at_once * ((uint64_t) info->n_vocab + info->n_embd) * sizeof(float) +
           (uint64_t) p.n_windows * o->window * 2 * sizeof(uint32_t);
}

static int corpus_model_writer_init(struct corpus_model_writer *w, struct errmsg *e)
{
    const struct engine_info *info = engine_info(w->en);
    const struct corpus_model_plan *p = &w->plan;

    w->sequences = calloc(p->n_at_once, sizeof(*w->sequences));
    w->tokens = calloc(p->n_at_once, sizeof(*w->tokens));
    w->written = calloc(p->n_windows * p->n_pieces * p->piece, sizeof(*w->written));
    w->hidden = malloc(p->n_at_once * info->n_embd * sizeof(float));
    w->logits = malloc(p->n_at_once * info->n_vocab * sizeof(float));
    if (!w->sequences || !w->tokens || !w->written || !w->hidden || !w->logits)
        return fail(e, -ENOMEM, "out of memory for generating %zu texts", p->n_at_once);

    return 0;
}

/* Begins a document; @at: the number of tokens of the sequence so far, which draws it. */
static int corpus_model_begin(struct corpus_model_writer *w, struct corpus_model_sequence *q, size_t at,
                              struct errmsg *e)
{
    uint64_t draw = splitmix64_seed(splitmix64_seed(w->seed, q->number), at);
    const size_t n_temperatures = sizeof(corpus_model_temperatures) / sizeof(*corpus_model_temperatures);
    const char *const *openings;
    size_t n = corpus_openings(q->kind, &openings);
    _cleanup_(freep) char *text = NULL;

    if (asprintf(&text, "%s%s", at > 0 || !q->is_first ? "\n\n" : "", openings[draw % n]) < 0) {
        text = NULL;
        return fail(e, -ENOMEM, "out of memory for the beginning of a text");
    }

    free(take_ptr(q->forced));
    q->next_forced = 0;
    q->temperature = corpus_model_temperatures[(draw >> 16) % n_temperatures];
    q->left = DOCUMENT_LEAST + (size_t) (draw >> 32) % DOCUMENT_MORE;
    return tokenizer_encode(engine_tokenizer(w->en), text, strlen(text), false, &q->forced, &q->n_forced, e);
}

/* The next token of a sequence: of the beginning of a document, or sampled from the model's distribution. */
static int corpus_model_next(struct corpus_model_writer *w, size_t i, size_t at, struct errmsg *e)
{
    const struct engine_info *info = engine_info(w->en);
    struct corpus_model_sequence *q = &w->sequences[i];
    float *logits = w->logits + i * info->n_vocab;

    if (q->left == 0) {
        int r = corpus_model_begin(w, q, at, e);

        if (r < 0)
            return r;
    }

    q->left--;
    if (q->next_forced < q->n_forced) {
        w->tokens[i] = q->forced[q->next_forced++];
        return 0;
    }
    if (at == 0 && corpus_bos(w->en) == UINT32_MAX)
        return fail(e, -EOPNOTSUPP, "the tokeniser of the model has no tokens for text to begin with");

    if (info->token_bos < info->n_vocab)
        logits[info->token_bos] = -1e30f;
    if (info->token_eos < info->n_vocab)
        logits[info->token_eos] = -1e30f;
    w->tokens[i] = sampler_softmax(logits, info->n_vocab, q->temperature, &q->sampler);
    return 0;
}

/* Runs w->tokens, one token of every sequence, through the model. */
static int corpus_model_run(struct corpus_model_writer *w, struct batch_cache *batch, struct errmsg *e)
{
    struct kv_cache cache = batch_cache_ops(batch);
    int r = engine_embed(w->en, w->tokens, w->n, w->hidden, e);

    if (r == 0)
        r = engine_layers(w->en, &cache, 0, engine_geometry(w->en)->n_layers, w->n, w->hidden, e);
    return r < 0 ? r : engine_logits(w->en, w->n, w->hidden, w->logits, e);
}

static int corpus_model_run_bos(struct corpus_model_writer *w, struct batch_cache *batch, struct errmsg *e)
{
    uint32_t bos = corpus_bos(w->en);

    if (bos == UINT32_MAX)
        return 0;

    for (size_t i = 0; i < w->n; i++)
        w->tokens[i] = bos;
    return corpus_model_run(w, batch, e);
}

/* What is drawn for a sequence depends on its number, not on the sequences beside it. */
static void corpus_model_start(struct corpus_model_writer *w, size_t first)
{
    corpus_model_free_forced(w);
    for (size_t i = 0; i < w->n; i++) {
        struct corpus_model_sequence *q = &w->sequences[i];

        *q = (struct corpus_model_sequence){
            .number = first + i,
            .kind = (first + i) / w->plan.n_pieces % CORPUS_KINDS,
            .is_first = (first + i) % w->plan.n_pieces == 0,
        };
        sampler_seed(&q->sampler, splitmix64_seed(~w->seed, q->number));
    }
}

/* Writes the sequences @first .. @first + w->n - 1 in lock step. */
static int corpus_model_write_round(struct corpus_model_writer *w, size_t first, struct errmsg *e)
{
    _cleanup_(batch_cache_freep) struct batch_cache *batch = NULL;
    size_t n = w->plan.piece;
    int r = batch_cache_new(engine_geometry(w->en), w->n, n + 1, &batch, e);

    if (r < 0)
        return r;

    corpus_model_start(w, first);
    r = corpus_model_run_bos(w, batch, e);
    for (size_t t = 0; r == 0 && t < n; t++) {
        for (size_t i = 0; r == 0 && i < w->n; i++) {
            r = corpus_model_next(w, i, t, e);
            w->written[(first + i) * n + t] = w->tokens[i];
        }

        if (r == 0 && t + 1 < n)
            r = corpus_model_run(w, batch, e);
        w->n_written += w->n;
        progress_update(w->progress, (double) w->n_written);
    }

    return r;
}

static int corpus_model_write_all(struct corpus_model_writer *w, struct errmsg *e)
{
    size_t n = w->plan.n_windows * w->plan.n_pieces;
    int r = 0;

    for (size_t first = 0; r == 0 && first < n; first += w->plan.n_at_once) {
        w->n = n - first < w->plan.n_at_once ? n - first : w->plan.n_at_once;
        r = corpus_model_write_round(w, first, e);
    }

    return r;
}

/* A source for each kind, or one for all: the digest is that of its windows one after another. */
static void corpus_model_describe(const struct corpus *c, uint32_t number, const char *kind)
{
    struct stats_source *source = &c->sources[number];
    crypto_hash_sha256_state sha;

    (void) crypto_hash_sha256_init(&sha);
    *source = (struct stats_source){.window = (uint32_t) c->window, .kind = SOURCE_MODEL};
    for (size_t i = 0; i < c->n_windows + c->n_held; i++) {
        size_t n = corpus_length(c, i), bytes = n * sizeof(*c->tokens);

        if (c->source_of[i] != number)
            continue;

        (void) crypto_hash_sha256_update(&sha, (const uint8_t *) corpus_window(c, i), bytes);
        source->bytes += bytes;
        source->windows += i < c->n_windows;
        source->tokens += i < c->n_windows ? n : 0;
    }

    (void) crypto_hash_sha256_final(&sha, source->digest);
    (void) snprintf((char *) c->names[number], sizeof(c->names[number]), "model%s%s", kind ? ": " : "",
                    kind ? kind : "");
}

int corpus_from_model(struct engine *en, const struct corpus_options *o, struct progress *p,
                      struct corpus *ret_corpus, struct errmsg *e)
{
    size_t n_held = o->want_held ? corpus_held(o->window) : 0, kinds = o->one_source ? 1 : CORPUS_KINDS, n;
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(corpus_model_writer_deinit) struct corpus_model_writer w = {
        .en = en, .plan = corpus_model_make_plan(en, o), .seed = o->seed, .progress = p};
    int r;

    n = w.plan.n_windows;
    r = corpus_init(&c, o->window, n, n * o->window, CORPUS_KINDS, e);
    if (r == 0)
        r = corpus_model_writer_init(&w, e);
    if (r == 0)
        r = corpus_model_write_all(&w, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++)
        corpus_add(&c, (uint32_t) (i % kinds), corpus_bos(en), w.written + i * w.plan.n_pieces * w.plan.piece,
                   w.plan.n_tokens, i);
    c.n_windows -= n_held;
    c.n_held = n_held;
    c.n_sources = n < kinds ? n : kinds;
    for (uint32_t kind = 0; kind < c.n_sources; kind++)
        corpus_model_describe(&c, kind, o->one_source ? NULL : corpus_kind_name(kind));
    *ret_corpus = c;
    c = (struct corpus){0};
    return 0;
}
