/* See retrieval.h. */
#include "base/splitmix64.h"
#include "tools/lab/retrieval.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/transform.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/generation.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/tokenizer.h"
#include "tools/lab/subject.h"

#define SENTENCE "\n\nThe pass key is %s. Remember it. %s is the pass key.\n\n"
#define QUESTION "\n\nWhat is the pass key? The pass key is the number"
enum { ANSWER_BYTES = 128 };

size_t retrieval_length(const struct retrieval_options *o, size_t i)
{
    return o->window * (i + 1) / RETRIEVAL_LENGTHS;
}

double retrieval_depth(size_t i)
{
    return (2.0 * (double) i + 1) / (2 * RETRIEVAL_DEPTHS);
}

static size_t retrieval_length_of(size_t key)
{
    return key % RETRIEVAL_LENGTHS;
}

static size_t retrieval_depth_of(size_t key)
{
    return key / RETRIEVAL_LENGTHS % RETRIEVAL_DEPTHS;
}

void retrieval_key(const struct retrieval_options *o, size_t i, char ret[static 6])
{
    (void) snprintf(ret, 6, "%05u", (unsigned) (10000 + splitmix64_seed(o->seed, 2 * (uint64_t) i) % 90000));
}

bool retrieval_found(const char *text, const char *key)
{
    size_t n = strlen(key);

    while (isspace((unsigned char) *text))
        text++;
    return strncmp(text, key, n) == 0 && !isdigit((unsigned char) text[n]);
}

void retrieval_interval(struct retrieval_share s, double *ret_low, double *ret_high)
{
    const double z = 1.959964; /* 97.5 % of N(0,1) */
    double n = (double) s.asked, p = (double) s.found / n;
    double middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));

    *ret_low = fmax(middle - half, 0);
    *ret_high = fmin(middle + half, 1);
}

size_t retrieval_tokens(const struct retrieval_options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n_keys; i++)
        n += retrieval_length(o, retrieval_length_of(i));
    return n;
}

/* ---- texts ---- */

/* A text under construction. */
struct prompt {
    uint32_t *tokens; /* [room] */
    size_t n, room;
};

static void retrieval_put(struct prompt *p, const uint32_t *tokens, size_t n)
{
    assert(n <= p->room - p->n);
    memcpy(p->tokens + p->n, tokens, n * sizeof(*tokens));
    p->n += n;
}

struct words {
    uint32_t *tokens;
    size_t n;
};

static void retrieval_words_deinit(struct words *w)
{
    free(w->tokens);
}

static int retrieval_words_of(const struct engine *en, const char *text, struct words *ret, struct errmsg *e)
{
    return tokenizer_encode(engine_tokenizer(en), text, strlen(text), false, &ret->tokens, &ret->n, e);
}

/* [BOS] filler SENTENCE filler QUESTION: together the length minus the answer. */
static int retrieval_write_prompt(const struct engine *en, const struct retrieval_options *o, size_t key,
                                  const uint32_t *filler, size_t n_filler, struct prompt *p, struct errmsg *e)
{
    const struct engine_info *info = engine_info(en);
    _cleanup_(retrieval_words_deinit) struct words sentence = {0};
    _cleanup_(retrieval_words_deinit) struct words question = {0};
    size_t length = retrieval_length(o, retrieval_length_of(key)) - RETRIEVAL_ANSWER_TOKENS, fixed, rest,
           before, from;
    bool bos = info->add_bos && info->token_bos < info->n_vocab;
    char digits[6], text[sizeof(SENTENCE) + 2 * sizeof(digits)];
    int r;

    retrieval_key(o, key, digits);
    (void) snprintf(text, sizeof(text), SENTENCE, digits, digits);
    r = retrieval_words_of(en, text, &sentence, e);
    if (r < 0)
        return r;

    r = retrieval_words_of(en, QUESTION, &question, e);
    if (r < 0)
        return r;

    fixed = sentence.n + question.n + bos;
    if (length < 2 * fixed)
        return fail(e, -EINVAL,
                    "a key and the question for it take %zu tokens: --window must be at least %zu", fixed,
                    RETRIEVAL_LENGTHS * (2 * fixed + RETRIEVAL_ANSWER_TOKENS));

    rest = length - fixed;
    if (rest > n_filler)
        return fail(e, -EINVAL, "the text has %zu tokens; hiding keys needs %zu", n_filler, rest);

    before = (size_t) (retrieval_depth(retrieval_depth_of(key)) * (double) rest);
    from = splitmix64_seed(o->seed, 2 * (uint64_t) key + 1) % (n_filler - rest + 1);
    p->n = 0;
    if (bos)
        retrieval_put(p, &info->token_bos, 1);
    retrieval_put(p, filler + from, before);
    retrieval_put(p, sentence.tokens, sentence.n);
    retrieval_put(p, filler + from + before, rest - before);
    retrieval_put(p, question.tokens, question.n);
    return 0;
}

/* ---- answers ---- */

struct answer {
    const struct tokenizer *tokenizer;
    struct progress *progress;
    double done;             /* tokens read before this text */
    char text[ANSWER_BYTES]; /* terminated; NUL bytes end it */
    size_t n;
};

static int retrieval_take_token(void *ctx, uint32_t token)
{
    struct answer *a = ctx;
    size_t bytes;
    const char *piece = tokenizer_piece(a->tokenizer, token, &bytes);

    for (size_t i = 0; piece && i < bytes && a->n + 1 < sizeof(a->text); i++)
        a->text[a->n++] = piece[i];
    return 0;
}

static void retrieval_note_progress(void *ctx, size_t n_done)
{
    struct answer *a = ctx;

    progress_update(a->progress, a->done + (double) n_done);
}

static int retrieval_ask(struct engine *en, struct subject *s, const struct prompt *p, struct answer *a,
                         struct errmsg *e)
{
    const struct generation_options go = {
        .n_tokens = RETRIEVAL_ANSWER_TOKENS,
        .emit = retrieval_take_token,
        .progress = retrieval_note_progress,
        .ctx = a,
    };
    struct generation g;
    struct kv_cache cache;
    int r = subject_begin(s, p->n + RETRIEVAL_ANSWER_TOKENS, &cache, e), ended;

    if (r < 0)
        return r;

    memset(a->text, 0, sizeof(a->text));
    a->n = 0;
    r = generation_run(en, &cache, NULL, NULL, p->tokens, p->n, &go, &g, e);
    ended = subject_end(s, r == 0, e);
    return r < 0 ? r : ended;
}

static void retrieval_count(struct retrieval *all, size_t key, bool found)
{
    struct retrieval_share *shares[] = {&all->all, &all->by_length[retrieval_length_of(key)],
                                        &all->by_depth[retrieval_depth_of(key)]};

    for (size_t i = 0; i < 3; i++) {
        shares[i]->found += found;
        shares[i]->asked++;
    }
}

int retrieval_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
                  const uint32_t *tokens, size_t n_tokens, const struct retrieval_options *o,
                  struct progress *p, struct retrieval *ret, struct errmsg *e)
{
    _cleanup_(freep) uint32_t *room = calloc(o->window, sizeof(*room));
    _cleanup_(freep) struct retrieval *sums = calloc(n_subjects, sizeof(*sums));
    struct prompt prompt = {room, 0, o->window};
    struct answer a = {.tokenizer = engine_tokenizer(en), .progress = p};
    int r = 0;

    assert(n_subjects > 0);
    if (!room || !sums)
        return fail(e, -ENOMEM, "out of memory for texts of %zu tokens", o->window);

    for (size_t key = 0; r == 0 && key < o->n_keys; key++) {
        bool first = false;
        char digits[6];

        retrieval_key(o, key, digits);
        r = retrieval_write_prompt(en, o, key, tokens, n_tokens, &prompt, e);
        for (size_t i = 0; r == 0 && i < n_subjects; i++) {
            bool found;

            r = retrieval_ask(en, subjects[i], &prompt, &a, e);
            a.done += (double) retrieval_length(o, retrieval_length_of(key));
            found = retrieval_found(a.text, digits);
            if (i == 0)
                first = found;
            sums[i].lost += first && !found;
            sums[i].won += found && !first;
            retrieval_count(&sums[i], key, found);
        }
    }

    if (r == 0)
        memcpy(ret, sums, n_subjects * sizeof(*ret));
    return r;
}
