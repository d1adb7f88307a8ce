/* See continuation.h. */
#include "tools/eval/continuation.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/generation.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/eval/subject.h"

enum { LOGIT_ROWS = 64 }; /* positions whose logits are held at a time */

struct continuation_run {
    struct engine *en;
    const struct continuation_options *o;
    uint32_t *sequence; /* [prompt_tokens + n_tokens] the prompt and a subject's tokens */
    uint32_t *exact;    /* [n_tokens] the exact model's tokens */
    float *hidden;      /* [prompt_tokens + n_tokens, n_embd] of a subject's own text, by the exact model */
    float *along[2];    /* the same of the exact model's text: by the exact model, by a subject */
    float *logits[2];   /* [LOGIT_ROWS, n_vocab] */
    size_t n_written;
};

static void continuation_run_deinit(struct continuation_run *r)
{
    free(r->sequence);
    free(r->exact);
    free(r->hidden);
    for (int i = 0; i < 2; i++) {
        free(r->along[i]);
        free(r->logits[i]);
    }
}

static int continuation_run_init(struct continuation_run *r, struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);
    size_t length = r->o->prompt_tokens + r->o->n_tokens, bytes;

    r->sequence = calloc(length, sizeof(*r->sequence));
    r->exact = calloc(r->o->n_tokens, sizeof(*r->exact));
    if (checked_mul3(length, info->n_embd, sizeof(float), &bytes)) {
        r->hidden = malloc(bytes);
        r->along[0] = malloc(bytes);
        r->along[1] = malloc(bytes);
    }
    if (checked_mul3(LOGIT_ROWS, info->n_vocab, sizeof(float), &bytes)) {
        r->logits[0] = malloc(bytes);
        r->logits[1] = malloc(bytes);
    }
    return r->sequence && r->exact && r->hidden && r->along[0] && r->along[1] && r->logits[0] && r->logits[1]
               ? 0
               : fail(e, -ENOMEM, "out of memory for texts of %zu tokens", length);
}

static int continuation_take_token(void *ctx, uint32_t token)
{
    struct continuation_run *r = ctx;

    r->sequence[r->o->prompt_tokens + r->n_written++] = token;
    return 0;
}

static int continuation_generate(struct continuation_run *r, struct subject *s, struct errmsg *e)
{
    const struct generation_options go = {
        .n_tokens = r->o->n_tokens,
        .ignore_eos = true,
        .emit = continuation_take_token,
        .ctx = r,
    };
    struct generation g;
    struct kv_cache cache;
    int err = subject_begin(s, r->o->prompt_tokens + r->o->n_tokens, &cache, e), ended;

    if (err < 0)
        return err;

    r->n_written = 0;
    err = generation_run(r->en, &cache, NULL, NULL, r->sequence, r->o->prompt_tokens, &go, &g, e);
    ended = subject_end(s, err == 0, e);
    return err < 0 ? err : ended;
}

/* Final hidden states of r->sequence but its last token, read through a subject's cache. */
static int continuation_read(struct continuation_run *r, struct subject *s, float *hidden, struct errmsg *e)
{
    size_t n = r->o->prompt_tokens + r->o->n_tokens - 1;
    struct kv_cache cache;
    int err = subject_begin(s, n, &cache, e), ended;

    if (err < 0)
        return err;

    err = engine_embed(r->en, r->sequence, n, hidden, e);
    if (err == 0)
        err = engine_layers(r->en, &cache, 0, engine_geometry(r->en)->n_layers, n, hidden, e);
    ended = subject_end(s, false, e);
    return err < 0 ? err : ended;
}

/* Adds -log p of the written tokens of r->sequence under the exact model, which reads them into @hidden. */
static int continuation_add_nll(struct continuation_run *r, struct subject *exact, float *hidden, double *nll,
                                struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);
    size_t n = r->o->prompt_tokens + r->o->n_tokens - 1, first = r->o->prompt_tokens - 1;
    int err = continuation_read(r, exact, hidden, e);

    for (size_t at = first; err == 0 && at < n; at += LOGIT_ROWS) {
        size_t rows = n - at < LOGIT_ROWS ? n - at : LOGIT_ROWS;

        err = engine_logits(r->en, rows, hidden + at * info->n_embd, r->logits[0], e);
        for (size_t row = 0; err == 0 && row < rows; row++)
            *nll += sampler_nll(r->logits[0] + row * info->n_vocab, info->n_vocab, r->sequence[at + row + 1]);
    }

    return err;
}

void continuation_part(size_t part, size_t n_tokens, size_t *ret_first, size_t *ret_end)
{
    static const size_t ends[CONTINUATION_PARTS] = {64, 256, 1024, 4096, SIZE_MAX};
    size_t first = part > 0 ? ends[part - 1] : 0;

    *ret_first = first < n_tokens ? first : n_tokens;
    *ret_end = ends[part] < n_tokens ? ends[part] : n_tokens;
}

/* Adds the KL of each part: r->along has the hidden states of both models on the exact model's text. */
static int continuation_compare(struct continuation_run *r, double kl[static CONTINUATION_PARTS],
                                struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);
    size_t before = r->o->prompt_tokens - 1; /* the prompt's last token predicts generated token 0 */
    int err = 0;

    for (size_t part = 0; part < CONTINUATION_PARTS; part++) {
        size_t first, end;

        continuation_part(part, r->o->n_tokens, &first, &end);
        for (size_t at = first; at < end; at += LOGIT_ROWS) {
            size_t rows = end - at < LOGIT_ROWS ? end - at : LOGIT_ROWS;

            for (int i = 0; err == 0 && i < 2; i++)
                err = engine_logits(r->en, rows, r->along[i] + (before + at) * info->n_embd, r->logits[i], e);
            if (err < 0)
                return err;
            for (size_t row = 0; row < rows; row++)
                kl[part] += sampler_kl(r->logits[0] + row * info->n_vocab, r->logits[1] + row * info->n_vocab,
                                       info->n_vocab);
        }
    }

    return 0;
}

/* KL of @s along the exact model's text: r->exact has it, r->along[0] what the exact model reads in it.
 * Overwrites r->sequence. */
static int continuation_add_kl(struct continuation_run *r, struct subject *s,
                               double kl[static CONTINUATION_PARTS], struct errmsg *e)
{
    int err;

    memcpy(r->sequence + r->o->prompt_tokens, r->exact, r->o->n_tokens * sizeof(*r->exact));
    err = continuation_read(r, s, r->along[1], e);
    return err < 0 ? err : continuation_compare(r, kl, e);
}

static size_t continuation_count_alike(const struct continuation_run *r)
{
    const uint32_t *written = r->sequence + r->o->prompt_tokens;
    size_t n = 0;

    while (n < r->o->n_tokens && written[n] == r->exact[n])
        n++;
    return n;
}

static void continuation_fill_prompt(struct continuation_run *r, const uint32_t *text)
{
    const struct engine_info *info = engine_info(r->en);
    size_t bos = info->add_bos && info->token_bos < info->n_vocab;

    if (bos)
        r->sequence[0] = info->token_bos;
    memcpy(r->sequence + bos, text, (r->o->prompt_tokens - bos) * sizeof(*text));
}

/* All prompts. @alike: [1 + n_subjects, n_prompts]; @sums: [1 + n_subjects] receives sums of nll and kl. */
static int continuation_run_prompts(struct continuation_run *r, struct subject *exact,
                                    struct subject *const *subjects, size_t n_subjects,
                                    const uint32_t *tokens, struct progress *p, size_t *alike,
                                    struct continuation *sums, struct errmsg *e)
{
    const struct continuation_options *o = r->o;
    double done = 0;

    for (size_t prompt = 0; prompt < o->n_prompts; prompt++) {
        continuation_fill_prompt(r, tokens + prompt * o->prompt_tokens);
        for (size_t i = 0; i <= n_subjects; i++) {
            struct subject *s = i == 0 ? exact : subjects[i - 1];
            int err = continuation_generate(r, s, e);

            if (err < 0)
                return err;
            if (i == 0)
                memcpy(r->exact, r->sequence + o->prompt_tokens, o->n_tokens * sizeof(*r->exact));
            alike[i * o->n_prompts + prompt] = continuation_count_alike(r);
            err = continuation_add_nll(r, exact, i == 0 ? r->along[0] : r->hidden, &sums[i].nll, e);
            if (err == 0 && i > 0)
                err = continuation_add_kl(r, s, sums[i].kl, e);
            if (err < 0)
                return err;

            progress_update(p, ++done);
        }
    }

    return 0;
}

int continuation_run(struct engine *en, struct subject *exact, struct subject *const *subjects,
                     size_t n_subjects, const uint32_t *tokens, const struct continuation_options *o,
                     struct progress *p, struct continuation *ret, struct errmsg *e)
{
    _cleanup_(continuation_run_deinit) struct continuation_run r = {.en = en, .o = o};
    _cleanup_(freep) size_t *alike = calloc((1 + n_subjects) * o->n_prompts, sizeof(*alike));
    _cleanup_(freep) struct continuation *sums = calloc(1 + n_subjects, sizeof(*sums));
    int err = continuation_run_init(&r, e);

    assert(o->n_prompts > 0 && o->prompt_tokens >= 2 && o->n_tokens > 0);
    if (err < 0)
        return err;
    if (!alike || !sums)
        return fail(e, -ENOMEM, "out of memory for %zu prompts", o->n_prompts);

    err = continuation_run_prompts(&r, exact, subjects, n_subjects, tokens, p, alike, sums, e);
    for (size_t i = 0; err == 0 && i <= n_subjects; i++) {
        memcpy(ret[i].alike, alike + i * o->n_prompts, o->n_prompts * sizeof(*alike));
        ret[i].nll = sums[i].nll;
        for (size_t part = 0; part < CONTINUATION_PARTS; part++) {
            size_t first, end;

            continuation_part(part, o->n_tokens, &first, &end);
            ret[i].kl[part] =
                end > first ? sums[i].kl[part] / ((double) o->n_prompts * (double) (end - first)) : 0;
        }
    }

    return err;
}

static int continuation_ascending(const void *a, const void *b)
{
    size_t x = *(const size_t *) a, y = *(const size_t *) b;

    return (x > y) - (x < y);
}

size_t continuation_quantile(size_t *values, size_t n, double q)
{
    size_t at = (size_t) fmax(ceil(q * (double) n) - 1, 0);

    qsort(values, n, sizeof(*values), continuation_ascending);
    return values[at < n ? at : n - 1];
}
