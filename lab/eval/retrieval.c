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
#include "tools/engine/sampler.h"
#include "tools/engine/tokenizer.h"
#include "lab/eval/prompt.h"
#include "tools/eval/subject.h"

/* A text with one key says "The pass key is 12345.", one with several "The pass key of Anna is 12345." */
#define SENTENCE "\n\nThe pass key%s is %s. Remember it. %s is the pass key%s.\n\n"
#define QUESTION "\n\nWhat is the pass key%s? The pass key%s is the number"

static const char *const names[RETRIEVAL_TOGETHER_MAX] = {
    "Anna",  "Boris", "Clara", "David", "Emma",  "Frank", "Grace", "Henry", "Irene",  "Jacob",
    "Karen", "Louis", "Maria", "Nora",  "Oscar", "Peter", "Quinn", "Ruth",  "Samuel", "Tom",
};

double retrieval_depth(size_t i)
{
    return (2.0 * (double) i + 1) / (2 * RETRIEVAL_DEPTHS);
}

static size_t retrieval_length_of(const struct retrieval_options *o, size_t key)
{
    return key / o->n_together % o->n_lengths;
}

double retrieval_place(const struct retrieval_options *o, size_t i)
{
    if (o->n_together == 1)
        return retrieval_depth(i / o->n_lengths % RETRIEVAL_DEPTHS);

    return ((double) (i % o->n_together) + 0.5) / (double) o->n_together;
}

static size_t retrieval_depth_of(const struct retrieval_options *o, size_t key)
{
    return (size_t) (retrieval_place(o, key) * RETRIEVAL_DEPTHS);
}

void retrieval_key(const struct retrieval_options *o, size_t i, char ret[static 6])
{
    (void) snprintf(ret, 6, "%05u", (unsigned) (10000 + splitmix64_seed(o->seed, 2 * (uint64_t) i) % 90000));
}

size_t retrieval_tokens(const struct retrieval_options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n_keys; i += o->n_together)
        n += o->lengths[retrieval_length_of(o, i)];
    return n;
}

/* ---- texts ---- */

/* What one text says about one key, in tokens. */
struct retrieval_item {
    struct prompt_piece sentence, question, answer;
};

/* A text: filler with the sentences of its keys; question and answer of each follow, in the order of @turn */
struct retrieval_text {
    struct prompt prompt; /* filler and sentences */
    struct retrieval_item items[RETRIEVAL_TOGETHER_MAX];
    size_t turn[RETRIEVAL_TOGETHER_MAX];
    size_t n; /* keys */
};

static void retrieval_forget_items(struct retrieval_text *t)
{
    for (size_t i = 0; i < RETRIEVAL_TOGETHER_MAX; i++) {
        prompt_piece_deinit(&t->items[i].sentence);
        prompt_piece_deinit(&t->items[i].question);
        prompt_piece_deinit(&t->items[i].answer);
    }
}

static void retrieval_text_deinit(struct retrieval_text *t)
{
    retrieval_forget_items(t);
    prompt_deinit(&t->prompt);
}

static int retrieval_item_init(struct retrieval_item *item, const struct engine *en,
                               const struct retrieval_options *o, size_t key, struct errmsg *e)
{
    char digits[6], answer[8], of[16] = "", text[256];
    int r;

    if (o->n_together > 1)
        (void) snprintf(of, sizeof(of), " of %s", names[key % o->n_together]);
    retrieval_key(o, key, digits);
    (void) snprintf(answer, sizeof(answer), " %s", digits);
    (void) snprintf(text, sizeof(text), SENTENCE, of, digits, digits, of);
    r = prompt_piece_init(&item->sentence, en, text, e);
    if (r < 0)
        return r;

    (void) snprintf(text, sizeof(text), QUESTION, of, of);
    r = prompt_piece_init(&item->question, en, text, e);
    if (r < 0)
        return r;

    return prompt_piece_init(&item->answer, en, answer, e);
}

/* The sentences, questions and answers of the text whose first key is @first, and the order of the questions.
 * Returns their tokens with the BOS, or a negative errno. */
static int retrieval_text_say(struct retrieval_text *t, const struct engine *en,
                              const struct retrieval_options *o, size_t first, struct errmsg *e)
{
    size_t n = prompt_bos(en);

    retrieval_forget_items(t);
    t->n = o->n_together;
    for (size_t i = 0; i < t->n; i++) {
        struct retrieval_item *item = &t->items[i];
        size_t other = splitmix64_seed(o->seed, ~(uint64_t) (first + i)) % (i + 1);
        int r = retrieval_item_init(item, en, o, first + i, e);

        if (r < 0)
            return r;

        n += item->sentence.n + item->question.n + item->answer.n;
        t->turn[i] = t->turn[other];
        t->turn[other] = i;
    }

    return (int) n;
}

/* [BOS] filler SENTENCE filler ... SENTENCE filler; with questions and answers it has the text's length. */
static int retrieval_text_write(struct retrieval_text *t, const struct engine *en,
                                const struct retrieval_options *o, size_t first, const uint32_t *filler,
                                size_t n_filler, struct errmsg *e)
{
    size_t all = o->lengths[retrieval_length_of(o, first)], put = 0, rest, from;
    int fixed = retrieval_text_say(t, en, o, first, e);

    if (fixed < 0)
        return fixed;
    if (all < 2 * (size_t) fixed)
        return fail(
            e, -EINVAL,
            "%zu %s and the questions take %d tokens: texts of %zu tokens are too short, they need %d; "
            "give a longer --window or --lengths",
            t->n, t->n == 1 ? "key" : "keys", fixed, all, 2 * fixed);

    rest = all - (size_t) fixed;
    if (rest > n_filler)
        return fail(e, -EINVAL, "the text has %zu tokens; hiding keys needs %zu", n_filler, rest);

    from = splitmix64_seed(o->seed, 2 * (uint64_t) first + 1) % (n_filler - rest + 1);
    prompt_begin(&t->prompt, en);
    for (size_t i = 0; i < t->n; i++) {
        size_t place = (size_t) (retrieval_place(o, first + i) * (double) rest);

        prompt_put(&t->prompt, filler + from + put, place - put);
        prompt_put(&t->prompt, t->items[i].sentence.tokens, t->items[i].sentence.n);
        put = place;
    }

    prompt_put(&t->prompt, filler + from + put, rest - put);
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

static bool retrieval_is_digit(const struct engine *en, uint32_t token)
{
    size_t bytes;
    const char *piece = tokenizer_piece(engine_tokenizer(en), token, &bytes);

    return piece && bytes > 0 && isdigit((unsigned char) piece[0]);
}

/* Reads question and answer of @item after what is in @cache. @ret_found: every token of the answer was the
 * likeliest one, and then a digit is not. */
static int retrieval_ask(struct engine *en, struct kv_cache *cache, const struct retrieval_item *item,
                         bool *ret_found, struct errmsg *e)
{
    const struct engine_info *info = engine_info(en);
    const struct prompt_piece *q = &item->question, *a = &item->answer;
    size_t n = q->n + a->n;
    _cleanup_(freep) uint32_t *tokens = calloc(n, sizeof(*tokens));
    _cleanup_(freep) float *hidden = calloc(n, info->n_embd * sizeof(*hidden));
    _cleanup_(freep) float *logits = calloc(a->n + 1, info->n_vocab * sizeof(*logits));
    bool found = true;
    int r;

    if (!tokens || !hidden || !logits)
        return fail(e, -ENOMEM, "out of memory for a question of %zu tokens", n);

    memcpy(tokens, q->tokens, q->n * sizeof(*tokens));
    memcpy(tokens + q->n, a->tokens, a->n * sizeof(*tokens));
    r = engine_embed(en, tokens, n, hidden, e);
    if (r == 0)
        r = engine_layers(en, cache, 0, engine_geometry(en)->n_layers, n, hidden, e);
    if (r == 0)
        r = engine_logits(en, a->n + 1, hidden + (q->n - 1) * info->n_embd, logits, e);
    if (r != 0)
        return r;

    for (size_t i = 0; i < a->n; i++)
        found = found && sampler_greedy(logits + i * info->n_vocab, info->n_vocab) == a->tokens[i];
    *ret_found =
        found && !retrieval_is_digit(en, sampler_greedy(logits + a->n * info->n_vocab, info->n_vocab));
    return 0;
}

/* @ret_found: [t->n] */
static int retrieval_read(struct engine *en, struct subject *s, const struct retrieval_text *t, size_t length,
                          struct prompt_progress *pp, bool *ret_found, struct errmsg *e)
{
    struct kv_cache cache;
    int r = subject_begin(s, length, &cache, e), ended;

    if (r < 0)
        return r;

    r = prompt_read(en, &cache, &t->prompt, pp, e);
    for (size_t i = 0; r == 0 && i < t->n; i++)
        r = retrieval_ask(en, &cache, &t->items[t->turn[i]], &ret_found[t->turn[i]], e);
    ended = subject_end(s, r == 0, e);
    pp->done += (double) (length - t->prompt.n);
    return r < 0 ? r : ended;
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
    _cleanup_(retrieval_text_deinit) struct retrieval_text text = {.n = 0};
    struct prompt_progress pp = {p, 0};
    int r = prompt_init(&text.prompt, retrieval_longest(o), e);

    assert(n_subjects > 0 && o->n_lengths > 0);
    assert(o->n_together > 0 && o->n_together <= RETRIEVAL_TOGETHER_MAX && o->n_keys % o->n_together == 0);
    if (r < 0)
        return r;
    if (!sums)
        return fail(e, -ENOMEM, "out of memory for %zu rows", n_subjects);

    for (size_t key = 0; key < o->n_keys; key += o->n_together) {
        bool first[RETRIEVAL_TOGETHER_MAX] = {false}, found[RETRIEVAL_TOGETHER_MAX] = {false};

        r = retrieval_text_write(&text, en, o, key, tokens, n_tokens, e);
        for (size_t i = 0; r == 0 && i < n_subjects; i++) {
            r = retrieval_read(en, subjects[i], &text, o->lengths[retrieval_length_of(o, key)], &pp, found,
                               e);
            if (i == 0)
                memcpy(first, found, sizeof(first));
            for (size_t j = 0; r == 0 && j < text.n; j++)
                retrieval_count(o, &sums[i], key + j, first[j], found[j]);
        }

        if (r != 0)
            return r;
    }

    memcpy(ret, sums, n_subjects * sizeof(*ret));
    return 0;
}
