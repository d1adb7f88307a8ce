/* See retrieval.h. */
#include "lab/eval/retrieval.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "tools/engine/engine.h"
#include "lab/eval/prompt.h"

#define SENTENCE "\n\nThe pass key is %s. Remember it. %s is the pass key.\n\n"
#define QUESTION "\n\nWhat is the pass key? The pass key is the number"

double retrieval_depth(size_t i)
{
    return (2.0 * (double) i + 1) / (2 * RETRIEVAL_DEPTHS);
}

static size_t retrieval_length_of(const struct retrieval_options *o, size_t key)
{
    return key % o->n_lengths;
}

static size_t retrieval_depth_of(const struct retrieval_options *o, size_t key)
{
    return key / o->n_lengths % RETRIEVAL_DEPTHS;
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

size_t retrieval_tokens(const struct retrieval_options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n_keys; i++)
        n += o->lengths[retrieval_length_of(o, i)] - RETRIEVAL_ANSWER_TOKENS;
    return n;
}

/* ---- texts ---- */

/* [BOS] filler SENTENCE filler QUESTION: together the length minus the answer. */
static int retrieval_write_prompt(const struct engine *en, const struct retrieval_options *o, size_t key,
                                  const uint32_t *filler, size_t n_filler, struct prompt *p, struct errmsg *e)
{
    _cleanup_(prompt_piece_deinit) struct prompt_piece sentence = {0};
    _cleanup_(prompt_piece_deinit) struct prompt_piece question = {0};
    size_t all = o->lengths[retrieval_length_of(o, key)], fixed, rest, before, from;
    char digits[6], text[sizeof(SENTENCE) + 2 * sizeof(digits)];
    int r;

    retrieval_key(o, key, digits);
    (void) snprintf(text, sizeof(text), SENTENCE, digits, digits);
    r = prompt_piece_init(&sentence, en, text, e);
    if (r < 0)
        return r;

    r = prompt_piece_init(&question, en, QUESTION, e);
    if (r < 0)
        return r;

    fixed = sentence.n + question.n + prompt_bos(en);
    if (all < 2 * fixed + RETRIEVAL_ANSWER_TOKENS)
        return fail(e, -EINVAL,
                    "a key and the question for it take %zu tokens: texts of %zu tokens are too short, they "
                    "need %zu; give a longer --window or --lengths",
                    fixed, all, 2 * fixed + RETRIEVAL_ANSWER_TOKENS);

    rest = all - RETRIEVAL_ANSWER_TOKENS - fixed;
    if (rest > n_filler)
        return fail(e, -EINVAL, "the text has %zu tokens; hiding keys needs %zu", n_filler, rest);

    before = (size_t) (retrieval_depth(retrieval_depth_of(o, key)) * (double) rest);
    from = splitmix64_seed(o->seed, 2 * (uint64_t) key + 1) % (n_filler - rest + 1);
    prompt_begin(p, en);
    prompt_put(p, filler + from, before);
    prompt_put(p, sentence.tokens, sentence.n);
    prompt_put(p, filler + from + before, rest - before);
    prompt_put(p, question.tokens, question.n);
    return 0;
}

/* ---- answers ---- */

static void retrieval_pair(struct interval_pairs *p, bool first, bool found)
{
    p->both += first && found;
    p->lost += first && !found;
    p->won += !first && found;
    p->neither += !first && !found;
}

/* @first: the first subject found it. */
static void retrieval_count(const struct retrieval_options *o, struct retrieval *all, size_t key, bool first,
                            bool found)
{
    size_t length = retrieval_length_of(o, key);
    struct retrieval_share *shares[] = {&all->all, &all->by_length[length],
                                        &all->by_depth[retrieval_depth_of(o, key)]};

    for (size_t i = 0; i < 3; i++) {
        shares[i]->found += found;
        shares[i]->asked++;
    }

    retrieval_pair(&all->pairs, first, found);
    retrieval_pair(&all->pairs_by_length[length], first, found);
}

static size_t retrieval_longest(const struct retrieval_options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n_lengths; i++)
        n = o->lengths[i] > n ? o->lengths[i] : n;
    return n;
}

int retrieval_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
                  const uint32_t *tokens, size_t n_tokens, const struct retrieval_options *o,
                  struct progress *p, struct retrieval *ret, struct errmsg *e)
{
    _cleanup_(freep) struct retrieval *sums = calloc(n_subjects, sizeof(*sums));
    _cleanup_(prompt_deinit) struct prompt prompt = {0};
    struct prompt_progress pp = {p, 0};
    int r = prompt_init(&prompt, retrieval_longest(o), e);

    assert(n_subjects > 0 && o->n_lengths > 0);
    if (r < 0)
        return r;
    if (!sums)
        return fail(e, -ENOMEM, "out of memory for %zu rows", n_subjects);

    for (size_t key = 0; r == 0 && key < o->n_keys; key++) {
        bool first = false;
        char digits[6], text[PROMPT_ANSWER_BYTES] = "";

        retrieval_key(o, key, digits);
        r = retrieval_write_prompt(en, o, key, tokens, n_tokens, &prompt, e);
        for (size_t i = 0; r == 0 && i < n_subjects; i++) {
            bool found;

            r = prompt_ask(en, subjects[i], &prompt, RETRIEVAL_ANSWER_TOKENS, &pp, text, e);
            found = retrieval_found(text, digits);
            if (i == 0)
                first = found;
            retrieval_count(o, &sums[i], key, first, found);
        }
    }

    if (r == 0)
        memcpy(ret, sums, n_subjects * sizeof(*ret));
    return r;
}
