/* Prompt and generation; see generation.h. */
#include "tools/command/generation.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/clock.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

struct generation_state {
    struct engine *en;
    struct kv_cache *cache;
    kvc_client *c;
    kvc_seq *s; /* NULL: exact cache, which neither matches nor publishes */
    const struct generation_options *o;
    uint32_t *tokens; /* [n_prompt + o->n_tokens] the sequence so far */
    size_t n, n_prompt;
    float *logits; /* [n_vocab] after the newest token */
    struct sampler_state sampler;
    struct generation result;
};

static void generation_state_deinit(struct generation_state *r)
{
    free(r->tokens);
    free(r->logits);
}

/*
 * A failure to publish (pool or quota full, table draining, daemon gone) leaves the sequence whole: it
 * continues privately, and the first error is reported at the end.
 */
static void generation_publish(struct generation_state *r)
{
    size_t n;
    int err;

    if (!r->s || r->result.publish_err < 0)
        return;

    err = kvc_seq_commit(r->s, r->tokens, r->n, &n);
    if (err < 0) {
        r->result.publish_err = err;
        (void) snprintf(r->result.publish_text, sizeof(r->result.publish_text), "%s", kvc_last_error(r->c));
        return;
    }

    r->result.n_published = n;
}

/* Matches published tokens of the prompt, then computes and publishes the rest piece by piece. */
static int generation_read_prompt(struct generation_state *r, struct errmsg *e)
{
    size_t most = r->o->piece_tokens > 0 ? r->o->piece_tokens : GENERATION_PIECE_TOKENS;
    int err;

    if (r->s) {
        err = kvc_seq_match(r->s, r->tokens, r->n_prompt, &r->result.n_matched);
        if (err < 0)
            return fail(e, err, "%s", kvc_last_error(r->c));
    }

    for (r->n = r->result.n_matched; r->n < r->n_prompt;) {
        size_t left = r->n_prompt - r->n, piece = left < most ? left : most;

        err = engine_forward(r->en, r->cache, r->tokens + r->n, piece, piece == left ? r->logits : NULL, e);
        if (err < 0)
            return err;

        r->n += piece;
        generation_publish(r);
        if (r->o->progress)
            r->o->progress(r->o->ctx, r->n);
    }

    return 0;
}

static uint32_t generation_choose(struct generation_state *r)
{
    size_t n_vocab = engine_info(r->en)->n_vocab;

    if (r->o->temperature <= 0)
        return sampler_greedy(r->logits, n_vocab);

    return sampler_softmax(r->logits, n_vocab, r->o->temperature, &r->sampler);
}

static int generation_write(struct generation_state *r, double start, struct errmsg *e)
{
    uint32_t eos = engine_info(r->en)->token_eos;
    double first = start;
    int err = 0;

    while (r->result.n_generated < r->o->n_tokens) {
        uint32_t token = generation_choose(r);

        if (token == eos && !r->o->ignore_eos) {
            r->result.ended = true;
            break;
        }

        if (r->result.n_generated++ == 0) {
            first = clock_seconds();
            r->result.first_seconds = first - start;
        }

        err = r->o->emit(r->o->ctx, token);
        if (err != 0 || r->result.n_generated == r->o->n_tokens)
            break;

        err = engine_forward(r->en, r->cache, &token, 1, r->logits, e);
        if (err < 0)
            break;

        r->tokens[r->n++] = token;
        if (r->n % KVC_CHUNK_TOKENS == 0)
            generation_publish(r);
    }

    r->result.rest_seconds = clock_seconds() - first;
    return err;
}

int generation_run(struct engine *en, struct kv_cache *cache, kvc_client *c, kvc_seq *s,
                   const uint32_t *tokens, size_t n_tokens, const struct generation_options *o,
                   struct generation *ret, struct errmsg *e)
{
    _cleanup_(generation_state_deinit) struct generation_state r = {
        .en = en,
        .cache = cache,
        .c = c,
        .s = s,
        .o = o,
        .n_prompt = n_tokens,
    };
    double start = clock_seconds();
    size_t room, bytes;
    int err;

    assert(n_tokens > 0);
    if (!checked_add(n_tokens, o->n_tokens, &room) || !checked_mul(room, sizeof(*tokens), &bytes))
        return fail(e, -EOVERFLOW, "%zu tokens are too many for the memory of this machine", o->n_tokens);

    r.tokens = malloc(bytes);
    r.logits = calloc(engine_info(en)->n_vocab, sizeof(*r.logits));
    if (!r.tokens || !r.logits)
        return fail(e, -ENOMEM, "out of memory for %zu tokens", room);

    memcpy(r.tokens, tokens, n_tokens * sizeof(*tokens));
    sampler_seed(&r.sampler, o->seed);
    err = generation_read_prompt(&r, e);
    if (err == 0)
        err = generation_write(&r, start, e);
    if (err != 0)
        return err;

    *ret = r.result;
    return 0;
}
