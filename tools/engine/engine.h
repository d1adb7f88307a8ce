/*
 * A small runner of dense Llama-family models from GGUF files, for calibration, evaluation and generation.
 *
 * The engine has no KV cache of its own: it passes keys and values to a struct kv_cache, which computes
 * attention. The exact cache (cache_exact.c) stores binary32 vectors; the compressed one (cache_kvcobra.c)
 * uses kvcobra.h. One engine serves one thread and has its own worker threads (engine_options.n_threads).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct errmsg;
struct engine;  /* weights, memory-mapped, and scratch */
struct threads; /* its workers */
struct tokenizer;

struct engine_options {
    unsigned n_threads; /* 0: as many as the process may use processors */
};

/**
 * engine_open() - map a GGUF model
 * Return: 0; -EBADMSG: malformed (what and where); -EOPNOTSUPP: architecture, tensor type, RoPE or tokeniser
 * that the engine cannot run, named; -ENOENT … Sentence in @e.
 */
int engine_open(const char *path, const struct engine_options *o, struct engine **ret_engine,
                struct errmsg *e);
struct engine *engine_free(struct engine *en);
static inline void engine_freep(struct engine **en)
{
    *en = engine_free(*en);
}

struct engine_info {
    char name[128]; /* general.name, or the file's base name */
    char architecture[32];
    uint32_t n_embd, n_vocab, n_context;
    uint32_t window_tokens;        /* sliding window; 0: none. Longer sequences are refused */
    uint32_t token_bos, token_eos; /* UINT32_MAX if the file has none */
    bool add_bos;
    uint64_t n_parameters;
    uint8_t model_digest[DIGEST_BYTES]; /* of the hyperparameters and tensor bytes that determine K and V */
};
const struct engine_info *engine_info(const struct engine *en);
const struct geometry *engine_geometry(const struct engine *en); /* half-split, rotary first */
const struct tokenizer *engine_tokenizer(const struct engine *en);

/* ---- cache ---- */

struct kv_cache {
    void *ctx;
    /* [n, n_kv_heads, d] binary32, pre-RoPE, half-split. Return: 0 or negative errno, sentence in @e. */
    int (*append)(void *ctx, uint32_t layer, const float *k, const float *v, size_t n, struct errmsg *e);
    /* @q, @out: [n_q, n_heads, d]; queries are the newest n_q positions of the layer. */
    int (*attend)(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out, struct errmsg *e);
    /* Tokens that every layer has. NULL: unknown; the caller must then respect the model's window. */
    size_t (*length)(void *ctx);
    /* The engine's workers, idle during the attend() calls of this pass. NULL: not used. */
    void (*use_threads)(void *ctx, struct threads *t);
    /* The sentence of a failure of append() and attend(). NULL: they write it to @e. */
    const char *(*last_error)(const void *error_ctx);
    const void *error_ctx;
};

/* ---- forward ---- */

/* Called for each layer after its attention with the pre-RoPE projections (after bias and q/k norm) that the
 * cache was given, @q [n, n_heads, d], @k, @v [n, n_kv_heads, d], and @hidden [n, n_embd], the residual
 * stream that attention was added to; borrowed. A non-zero return stops the forward with that value. */
typedef int (*engine_tap)(void *ctx, uint32_t layer, size_t n, const float *q, const float *k, const float *v,
                          const float *hidden);
void engine_set_tap(struct engine *en, engine_tap tap, void *ctx);

/*
 * The three steps of a forward pass. @hidden is [n, n_embd]; updated in place by engine_layers(). A number
 * that is not finite, as damaged weights give, is -EBADMSG with a sentence that names layer and token.
 */
int engine_embed(struct engine *en, const uint32_t *tokens, size_t n, float *hidden, struct errmsg *e);
int engine_layers(struct engine *en, struct kv_cache *cache, uint32_t first_layer, uint32_t end_layer,
                  size_t n, float *hidden, struct errmsg *e);
/* Final norm and head: @logits [n, n_vocab]. */
int engine_logits(struct engine *en, size_t n, const float *hidden, float *logits, struct errmsg *e);

/* All three; @logits [n_vocab] of the last token only. NULL: not computed (prefill). */
int engine_forward(struct engine *en, struct kv_cache *cache, const uint32_t *tokens, size_t n, float *logits,
                   struct errmsg *e);

/* Output projection W_O of a layer, dequantised: [n_embd, n_heads * d] row-major. */
int engine_output_projection(struct engine *en, uint32_t layer, float *ret_wo, struct errmsg *e);

/* ---- caches ---- */

struct exact_cache; /* binary32, any length up to @n_max */
int exact_cache_new(const struct geometry *g, size_t n_max, struct exact_cache **ret_cache, struct errmsg *e);
struct exact_cache *exact_cache_free(struct exact_cache *c);
void exact_cache_clear(struct exact_cache *c);
struct kv_cache exact_cache_ops(struct exact_cache *c);

/* For caches built on an exact one. attend: queries at positions first .. first + n_q - 1, which see the
 * tokens up to themselves. replace: overwrites tokens by rows x [n, n_kv_heads, d]. */
int exact_cache_attend(struct exact_cache *c, uint32_t layer, const float *q, size_t first, size_t n_q,
                       float *out, struct errmsg *e);
void exact_cache_replace(struct exact_cache *c, uint32_t layer, enum side side, size_t first, size_t n,
                         bool rotated, const float *x);
static inline void exact_cache_freep(struct exact_cache **c)
{
    *c = exact_cache_free(*c);
}

/* Over a sequence of the client library; both borrowed. */
struct kvc_client;
struct kvc_seq;
struct kv_cache kvcobra_cache_ops(struct kvc_client *c, struct kvc_seq *s);
/* The client attends on the engine's threads, which are idle then. The engine must outlive the last attention
 * of the client. Return: 0; a negative errno, kvc_last_error(c) has the sentence. */
int kvcobra_cache_lend_threads(const struct engine *en, struct kvc_client *c);
/* The model id for kvc_model_open*(): rope_freq points into @en. */
struct kvc_model_id;
void engine_model_id(const struct engine *en, struct kvc_model_id *ret_id);
