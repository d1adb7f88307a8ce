/* Decode steps over an exact and a compressed cache; see bench_generate.h. */
#include "lab/bench/bench_generate.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/client_model.h"
#include "tools/command/clock.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"

enum { PIECE_TOKENS = 512 };

/* Both caches, for prefill: append() goes to both, attend() to the exact one. */
struct pair {
    struct kv_cache exact, packed;
    double append_seconds; /* in the packed cache */
};

static int bench_generate_append_packed(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                                        struct errmsg *e)
{
    struct pair *p = ctx;
    double start = clock_seconds();
    int r = p->packed.append(p->packed.ctx, layer, k, v, n, e);

    p->append_seconds += clock_seconds() - start;
    return r < 0 ? fail(e, r, "%s", p->packed.last_error(p->packed.error_ctx)) : 0;
}

static int bench_generate_append_both(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                                      struct errmsg *e)
{
    struct pair *p = ctx;
    int r = p->exact.append(p->exact.ctx, layer, k, v, n, e);

    return r < 0 ? r : bench_generate_append_packed(ctx, layer, k, v, n, e);
}

static int bench_generate_attend_exact(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                                       struct errmsg *e)
{
    struct pair *p = ctx;

    return p->exact.attend(p->exact.ctx, layer, q, n_q, out, e);
}

static int bench_generate_attend_packed(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                                        struct errmsg *e)
{
    struct pair *p = ctx;
    int r = p->packed.attend(p->packed.ctx, layer, q, n_q, out, e);

    return r < 0 ? fail(e, r, "%s", p->packed.last_error(p->packed.error_ctx)) : 0;
}

static void bench_generate_use_threads_exact(void *ctx, struct threads *t)
{
    struct pair *p = ctx;

    if (p->exact.use_threads)
        p->exact.use_threads(p->exact.ctx, t);
}

static void bench_generate_use_threads_packed(void *ctx, struct threads *t)
{
    struct pair *p = ctx;

    if (p->packed.use_threads)
        p->packed.use_threads(p->packed.ctx, t);
}

struct contexts {
    struct engine *en;
    struct pair pair;
    struct kv_cache both, packed; /* views of the pair */
    const uint32_t *tokens;
    size_t at;                                       /* tokens in both caches */
    float *logits;                                   /* [n_vocab] */
    double *exact_seconds, *packed_seconds, *ratios; /* [n_steps] */
    struct progress *progress;
};

static void bench_generate_contexts_deinit(struct contexts *x)
{
    free(x->logits);
    free(x->exact_seconds);
    free(x->packed_seconds);
    free(x->ratios);
}

static int bench_generate_prefill(struct contexts *x, size_t end, struct prefill_result *total,
                                  struct errmsg *e)
{
    double start = clock_seconds(), encoding = x->pair.append_seconds;

    total->n_tokens += end - x->at;
    while (x->at < end) {
        size_t left = end - x->at, piece = left < PIECE_TOKENS ? left : PIECE_TOKENS;
        int r = engine_forward(x->en, &x->both, x->tokens + x->at, piece, NULL, e);

        if (r < 0)
            return r;

        x->at += piece;
        progress_update(x->progress, (double) x->at);
    }

    encoding = x->pair.append_seconds - encoding;
    total->append_seconds += encoding;
    total->model_seconds += clock_seconds() - start - encoding;
    return 0;
}

static int bench_generate_step(struct contexts *x, struct kv_cache *cache, double *ret_seconds,
                               struct errmsg *e)
{
    double start = clock_seconds();
    int r = engine_forward(x->en, cache, x->tokens + x->at, 1, x->logits, e);

    *ret_seconds = clock_seconds() - start;
    return r;
}

/* An untimed step: it encodes the chunks of the prefill, which are due with the next token. */
static int bench_generate_run_untimed(struct contexts *x, struct prefill_result *total, struct errmsg *e)
{
    double encoding = x->pair.append_seconds, seconds;
    int r = bench_generate_step(x, &x->pair.exact, &seconds, e);

    if (r < 0)
        return r;

    r = bench_generate_step(x, &x->packed, &seconds, e);
    if (r < 0)
        return r;

    x->at++;
    total->append_seconds += x->pair.append_seconds - encoding;
    return 0;
}

static int bench_generate_decode(struct contexts *x, size_t n_steps, struct context_result *ret,
                                 struct errmsg *e)
{
    double encoding = x->pair.append_seconds, packed = 0;

    for (size_t i = 0; i < n_steps; i++, x->at++) {
        bool exact_first = i % 2 == 0;
        int r = exact_first ? bench_generate_step(x, &x->pair.exact, &x->exact_seconds[i], e)
                            : bench_generate_step(x, &x->packed, &x->packed_seconds[i], e);

        if (r < 0)
            return r;

        r = exact_first ? bench_generate_step(x, &x->packed, &x->packed_seconds[i], e)
                        : bench_generate_step(x, &x->pair.exact, &x->exact_seconds[i], e);
        if (r < 0)
            return r;

        x->ratios[i] = x->exact_seconds[i] / x->packed_seconds[i];
        packed += x->packed_seconds[i];
    }

    progress_update(x->progress, (double) x->at);
    *ret = (struct context_result){
        .n_tokens = x->at,
        .exact = timing_of(x->exact_seconds, n_steps),
        .packed = timing_of(x->packed_seconds, n_steps),
        .ratio = timing_of(x->ratios, n_steps),
        .append_share = (x->pair.append_seconds - encoding) / packed,
    };
    return 0;
}

int bench_contexts(struct engine *en, kvc_client *c, kvc_model *m, const uint32_t *tokens,
                   const size_t *contexts, size_t n, size_t n_steps, struct progress *p,
                   struct context_result *ret_contexts, struct prefill_result *ret_prefill, struct errmsg *e)
{
    _cleanup_(exact_cache_freep) struct exact_cache *exact = NULL;
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL;
    _cleanup_(bench_generate_contexts_deinit) struct contexts x = {.en = en, .tokens = tokens, .progress = p};
    struct prefill_result prefilled = {0};
    int r = exact_cache_new(engine_geometry(en), contexts[n - 1], &exact, e);

    if (r < 0)
        return r;

    r = kvc_seq_new(m, NULL, 0, &s);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    x.pair = (struct pair){.exact = exact_cache_ops(exact), .packed = kvcobra_cache_ops(c, s)};
    x.both = (struct kv_cache){&x.pair, bench_generate_append_both,       bench_generate_attend_exact,
                               NULL,    bench_generate_use_threads_exact, NULL,
                               NULL};
    x.packed = (struct kv_cache){&x.pair, bench_generate_append_packed,      bench_generate_attend_packed,
                                 NULL,    bench_generate_use_threads_packed, NULL,
                                 NULL};
    x.logits = calloc(engine_info(en)->n_vocab, sizeof(*x.logits));
    x.exact_seconds = calloc(n_steps, sizeof(double));
    x.packed_seconds = calloc(n_steps, sizeof(double));
    x.ratios = calloc(n_steps, sizeof(double));
    if (!x.logits || !x.exact_seconds || !x.packed_seconds || !x.ratios)
        return fail(e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < n; i++) {
        r = bench_generate_prefill(&x, contexts[i] - n_steps - 1, &prefilled, e);
        if (r < 0)
            return r;

        r = bench_generate_run_untimed(&x, &prefilled, e);
        if (r < 0)
            return r;

        r = bench_generate_decode(&x, n_steps, &ret_contexts[i], e);
        if (r < 0)
            return r;
    }

    *ret_prefill = prefilled;
    return 0;
}
