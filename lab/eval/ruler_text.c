/* See ruler_text.h. */
#include "lab/eval/ruler_text.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "lab/eval/ruler_words.h"

enum {
    NEEDLES = 4,
    CHAIN = 5,         /* variables with the same value */
    ITEMS_MAX = CHAIN, /* sentences hidden in a filler */
    TEXT_BYTES = 256,  /* of a question */
    COMMON = 10,       /* words asked for */
    INVENTED = 50,     /* words of frequent-words */
    FREQUENT = 3,      /* of them asked for */
    WORDS_MIN = 100,   /* in a list: else words that are asked for are no more frequent than others */
    COMMON_PART = 3    /* a third of the list are the common words */
};

static const struct {
    const char *name;
    size_t answer_tokens;
} ruler_text_tasks[RULER_TASKS] = {
    {"single", 16},    {"multi-key", 16},    {"multi-value", 48},    {"multi-query", 64},
    {"variables", 48}, {"common-words", 64}, {"frequent-words", 32},
};

const char *ruler_task_name(enum ruler_task t)
{
    return ruler_text_tasks[t].name;
}

int ruler_task_find(const char *name)
{
    for (int t = 0; t < RULER_TASKS; t++)
        if (strcmp(ruler_text_tasks[t].name, name) == 0)
            return t;
    return -1;
}

size_t ruler_answer_tokens(enum ruler_task t)
{
    return ruler_text_tasks[t].answer_tokens;
}

struct ruler_writer {
    const struct engine *en;
    struct prompt_piece sentences[RULER_SENTENCES]; /* " The kettle ..." */
    struct prompt_piece nouns[RULER_NOUNS];         /* " anchor" */
};

struct ruler_writer *ruler_writer_free(struct ruler_writer *w)
{
    if (!w)
        return NULL;

    for (size_t i = 0; i < RULER_SENTENCES; i++)
        prompt_piece_deinit(&w->sentences[i]);
    for (size_t i = 0; i < RULER_NOUNS; i++)
        prompt_piece_deinit(&w->nouns[i]);
    free(w);
    return NULL;
}

/* The piece begins with a space, so that pieces that follow each other are tokenised like one text. */
static int ruler_text_piece(const struct engine *en, const char *text, struct prompt_piece *ret,
                            struct errmsg *e)
{
    char spaced[TEXT_BYTES];

    (void) snprintf(spaced, sizeof(spaced), " %s", text);
    return prompt_piece_init(ret, en, spaced, e);
}

int ruler_writer_new(const struct engine *en, struct ruler_writer **ret_writer, struct errmsg *e)
{
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = calloc(1, sizeof(*w));
    int r = 0;

    if (!w)
        return fail(e, -ENOMEM, "out of memory for texts");

    w->en = en;
    for (size_t i = 0; r == 0 && i < RULER_SENTENCES; i++)
        r = ruler_text_piece(en, ruler_sentences[i], &w->sentences[i], e);
    for (size_t i = 0; r == 0 && i < RULER_NOUNS; i++)
        r = ruler_text_piece(en, ruler_nouns[i], &w->nouns[i], e);
    if (r < 0)
        return r;

    *ret_writer = take_ptr(w);
    return 0;
}

static size_t ruler_text_below(uint64_t *state, size_t n)
{
    return splitmix64_next(state) % n;
}

/* @n different numbers below @limit. */
static void ruler_text_draw_different(uint64_t *state, size_t limit, size_t n, size_t *ret)
{
    for (size_t i = 0; i < n;) {
        bool known = false;

        ret[i] = ruler_text_below(state, limit);
        for (size_t k = 0; k < i; k++)
            known = known || ret[k] == ret[i];
        i += !known;
    }
}

static void ruler_text_shuffle(uint64_t *state, size_t *x, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        size_t at = ruler_text_below(state, i), moved = x[i - 1];

        x[i - 1] = x[at];
        x[at] = moved;
    }
}

static int ruler_text_too_short(size_t n_tokens, enum ruler_task t, struct errmsg *e)
{
    return fail(e, -EINVAL, "the task %s does not fit %zu tokens: give longer --lengths", ruler_task_name(t),
                n_tokens);
}

/* ---- sentences hidden in a filler ---- */

struct ruler_items {
    char text[ITEMS_MAX][TEXT_BYTES];
    size_t n;
    const char *begin; /* the first words of the prompt */
    char question[TEXT_BYTES];
};

static int ruler_text_ascending(const void *a, const void *b)
{
    size_t x = *(const size_t *) a, y = *(const size_t *) b;

    return (x > y) - (x < y);
}

/* Tokens of the begin, the items and the question. */
struct ruler_pieces {
    struct prompt_piece begin, items[ITEMS_MAX], question;
    size_t n_tokens;
};

static void ruler_text_pieces_deinit(struct ruler_pieces *p)
{
    prompt_piece_deinit(&p->begin);
    prompt_piece_deinit(&p->question);
    for (size_t i = 0; i < ITEMS_MAX; i++)
        prompt_piece_deinit(&p->items[i]);
}

static int ruler_text_pieces_init(struct ruler_pieces *p, const struct engine *en,
                                  const struct ruler_items *items, struct errmsg *e)
{
    int r = prompt_piece_init(&p->begin, en, items->begin, e);

    if (r == 0)
        r = prompt_piece_init(&p->question, en, items->question, e);
    for (size_t i = 0; r == 0 && i < items->n; i++) {
        r = ruler_text_piece(en, items->text[i], &p->items[i], e);
        p->n_tokens += p->items[i].n;
    }
    p->n_tokens += p->begin.n + p->question.n + prompt_bos(en);
    return r;
}

/* Begin, then sentences with the items between them in their order, then the question. @room: tokens. */
static int ruler_text_hide(const struct ruler_writer *w, const struct ruler_items *items, size_t room,
                           uint64_t *state, struct prompt *p, struct errmsg *e)
{
    _cleanup_(ruler_text_pieces_deinit) struct ruler_pieces pieces = {.n_tokens = 0};
    _cleanup_(freep) size_t *drawn = calloc(room + 1, sizeof(*drawn));
    size_t n = 0, rest, before[ITEMS_MAX], item = 0;
    int r = ruler_text_pieces_init(&pieces, w->en, items, e);

    if (r < 0)
        return r;
    if (!drawn)
        return fail(e, -ENOMEM, "out of memory for a text of %zu tokens", room);
    if (room < pieces.n_tokens + w->sentences[0].n)
        return -ERANGE;

    rest = room - pieces.n_tokens;
    for (;; n++) {
        drawn[n] = ruler_text_below(state, RULER_SENTENCES);
        if (w->sentences[drawn[n]].n > rest)
            break;
        rest -= w->sentences[drawn[n]].n;
    }
    for (size_t i = 0; i < items->n; i++)
        before[i] = ruler_text_below(state, n + 1);
    qsort(before, items->n, sizeof(*before), ruler_text_ascending);

    prompt_begin(p, w->en);
    prompt_put(p, pieces.begin.tokens, pieces.begin.n);
    for (size_t i = 0; i <= n; i++) {
        for (; item < items->n && before[item] == i; item++)
            prompt_put(p, pieces.items[item].tokens, pieces.items[item].n);
        if (i < n)
            prompt_put(p, w->sentences[drawn[i]].tokens, w->sentences[drawn[i]].n);
    }
    prompt_put(p, pieces.question.tokens, pieces.question.n);
    return 0;
}

/* Five digits. */
static void ruler_text_draw_numbers(uint64_t *state, size_t n, char ret[][RULER_WORD_BYTES])
{
    size_t x[ITEMS_MAX];

    ruler_text_draw_different(state, 90000, n, x);
    for (size_t i = 0; i < n; i++)
        (void) snprintf(ret[i], RULER_WORD_BYTES, "%zu", 10000 + x[i]);
}

/* "A pass number of anchor is 12345." for four things, or four numbers of one thing. */
static void ruler_text_needles(enum ruler_task t, uint64_t *state, struct ruler_items *items,
                               struct ruler_trial *trial)
{
    size_t n = t == RULER_SINGLE ? 1 : NEEDLES, nouns[NEEDLES], asked;
    char numbers[NEEDLES][RULER_WORD_BYTES];
    const char *thing[NEEDLES];

    ruler_text_draw_different(state, RULER_NOUNS, NEEDLES, nouns);
    ruler_text_draw_numbers(state, n, numbers);
    items->begin = "Some secret numbers are hidden in the following text. Remember them.\n\n";
    items->n = n;
    for (size_t i = 0; i < n; i++) {
        thing[i] = ruler_nouns[nouns[t == RULER_MULTI_VALUE ? 0 : i]];
        (void) snprintf(items->text[i], TEXT_BYTES, "The secret number of the %s is %s.", thing[i],
                        numbers[i]);
    }

    asked = ruler_text_below(state, n);
    trial->n_answers = t == RULER_SINGLE || t == RULER_MULTI_KEY ? 1 : n;
    for (size_t i = 0; i < trial->n_answers; i++)
        memcpy(trial->answers[i], numbers[trial->n_answers == 1 ? asked : i], RULER_WORD_BYTES);
    if (t == RULER_MULTI_VALUE)
        (void) snprintf(
            items->question, TEXT_BYTES,
            "\n\nWhat are the %d secret numbers of the %s in the text? The secret numbers of the %s are",
            NEEDLES, thing[0], thing[0]);
    else if (t == RULER_MULTI_QUERY)
        (void) snprintf(
            items->question, TEXT_BYTES,
            "\n\nWhat are the secret numbers of the %s, the %s, the %s and the %s? The secret numbers "
            "of the %s, the %s, the %s and the %s are",
            thing[0], thing[1], thing[2], thing[3], thing[0], thing[1], thing[2], thing[3]);
    else
        (void) snprintf(items->question, TEXT_BYTES,
                        "\n\nWhat is the secret number of the %s? The secret number of the %s is",
                        thing[asked], thing[asked]);
}

/* "Let KWDXA = 12345." "Let QPRTU = KWDXA." ... */
static void ruler_text_chain(uint64_t *state, struct ruler_items *items, struct ruler_trial *trial)
{
    char number[1][RULER_WORD_BYTES];

    ruler_text_draw_numbers(state, 1, number);
    trial->n_answers = CHAIN;
    for (size_t i = 0; i < CHAIN; i++) {
        memset(trial->answers[i], 0, RULER_WORD_BYTES);
        for (size_t k = 0; k < 4; k++)
            trial->answers[i][k] = (char) ('A' + ruler_text_below(state, 26));
        trial->answers[i][4] = (char) ('A' + i * 5); /* five different names */
        (void) snprintf(items->text[i], TEXT_BYTES, "Let %s = %s.", trial->answers[i],
                        i == 0 ? number[0] : trial->answers[i - 1]);
    }

    items->n = CHAIN;
    items->begin = "Some variables are assigned in the following text. Follow their values.\n\n";
    (void) snprintf(items->question, TEXT_BYTES,
                    "\n\nWhich %d variables have the value %s? The variables with the value %s are", CHAIN,
                    number[0], number[0]);
}

static int ruler_text_write_hidden(const struct ruler_writer *w, enum ruler_task t, size_t n_tokens,
                                   uint64_t *state, struct ruler_trial *trial, struct errmsg *e)
{
    struct ruler_items items;
    int r;

    if (t == RULER_VARIABLES)
        ruler_text_chain(state, &items, trial);
    else
        ruler_text_needles(t, state, &items, trial);
    r = n_tokens > ruler_answer_tokens(t)
            ? ruler_text_hide(w, &items, n_tokens - ruler_answer_tokens(t), state, &trial->prompt, e)
            : -ERANGE;
    return r == -ERANGE ? ruler_text_too_short(n_tokens, t, e) : r;
}

/* ---- lists of words ---- */

struct ruler_list {
    const struct prompt_piece *words[RULER_NOUNS];
    size_t counts[RULER_NOUNS]; /* set by ruler_text_count_*() */
    size_t n;                   /* words with a count */
};

/* A third of @total words are the common ones; the others share the rest, each of them seldom. */
static void ruler_text_count_common(struct ruler_list *l, size_t total)
{
    size_t often = total / COMMON_PART / COMMON, rest = total - often * COMMON, n_rare = RULER_NOUNS - COMMON;

    l->n = COMMON + (rest < n_rare ? rest : n_rare);
    for (size_t i = 0; i < l->n; i++)
        l->counts[i] = i < COMMON ? often : rest / n_rare + (i - COMMON < rest % n_rare);
}

/* Word i stands as often as 1 / i^2 tells, at least once: zeta(2) = 1.645. */
static void ruler_text_count_frequent(struct ruler_list *l, size_t total)
{
    l->n = INVENTED;
    for (size_t i = 0; i < l->n; i++) {
        size_t count = (size_t) ((double) total / (1.645 * (double) ((i + 1) * (i + 1))));

        l->counts[i] = count > 0 ? count : 1;
    }
}

static size_t ruler_text_list_tokens(const struct ruler_list *l)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        n += l->counts[i] * l->words[i]->n;
    return n;
}

/* Fills @p with the longest list of words that fits @room tokens, in random order. */
static int ruler_text_put_list(struct ruler_list *l, bool common, size_t room, uint64_t *state,
                               struct prompt *p, struct errmsg *e)
{
    _cleanup_(freep) size_t *order = calloc(room + 1, sizeof(*order));
    size_t total = room, n = 0;

    if (!order)
        return fail(e, -ENOMEM, "out of memory for a list of %zu words", room);

    for (; total >= WORDS_MIN; total--) {
        if (common)
            ruler_text_count_common(l, total);
        else
            ruler_text_count_frequent(l, total);
        if (ruler_text_list_tokens(l) <= room)
            break;
    }
    if (total < WORDS_MIN)
        return -ERANGE;

    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->counts[i]; k++)
            order[n++] = i;
    ruler_text_shuffle(state, order, n);
    for (size_t i = 0; i < n; i++)
        prompt_put(p, l->words[order[i]]->tokens, l->words[order[i]]->n);
    return 0;
}

/* Three syllables: "bakolu"; the first two tell the index, so that all are different. */
static void ruler_text_invent(uint64_t *state, size_t i, char ret[static RULER_WORD_BYTES])
{
    static const char consonants[] = "bdfgklmnprstvz", vowels[] = "aeiou";

    (void) snprintf(ret, RULER_WORD_BYTES, "%c%c%c%c%c%c", consonants[i % 14], vowels[i / 14 % 5],
                    consonants[ruler_text_below(state, 14)], vowels[ruler_text_below(state, 5)],
                    consonants[ruler_text_below(state, 14)], vowels[ruler_text_below(state, 5)]);
}

/* The words of a list, those that are asked for first; invented ones are in @own. */
static int ruler_text_choose_words(const struct ruler_writer *w, bool common, uint64_t *state,
                                   struct prompt_piece own[static INVENTED], struct ruler_list *l,
                                   struct ruler_trial *trial, struct errmsg *e)
{
    size_t order[RULER_NOUNS], n = common ? RULER_NOUNS : INVENTED;

    for (size_t i = 0; i < n; i++)
        order[i] = i;
    ruler_text_shuffle(state, order, n);
    trial->n_answers = common ? COMMON : FREQUENT;
    for (size_t i = 0; i < n; i++) {
        char word[RULER_WORD_BYTES];

        if (common) {
            (void) snprintf(word, sizeof(word), "%s", ruler_nouns[order[i]]);
            l->words[i] = &w->nouns[order[i]];
        } else {
            int r;

            ruler_text_invent(state, order[i], word);
            r = ruler_text_piece(w->en, word, &own[i], e);
            if (r < 0)
                return r;

            l->words[i] = &own[i];
        }
        if (i < trial->n_answers)
            memcpy(trial->answers[i], word, sizeof(word));
    }

    return 0;
}

struct ruler_own_words {
    struct prompt_piece items[INVENTED];
};

static void ruler_text_own_words_deinit(struct ruler_own_words *o)
{
    for (size_t i = 0; i < INVENTED; i++)
        prompt_piece_deinit(&o->items[i]);
}

static int ruler_text_write_list(const struct ruler_writer *w, enum ruler_task t, size_t n_tokens,
                                 uint64_t *state, struct ruler_trial *trial, struct errmsg *e)
{
    _cleanup_(ruler_text_own_words_deinit) struct ruler_own_words own = {0};
    _cleanup_(prompt_piece_deinit) struct prompt_piece begin = {0};
    _cleanup_(prompt_piece_deinit) struct prompt_piece question = {0};
    bool common = t == RULER_COMMON_WORDS;
    struct ruler_list list = {.n = 0};
    char asked[TEXT_BYTES];
    size_t fixed;
    int r = ruler_text_choose_words(w, common, state, own.items, &list, trial, e);

    (void) snprintf(
        asked, sizeof(asked),
        "\n\nWhich %zu words stand in the list most often? The %zu most frequent words of the list are",
        trial->n_answers, trial->n_answers);
    if (r == 0)
        r = prompt_piece_init(&begin, w->en, "Count the words of the following list.\n\n", e);
    if (r == 0)
        r = prompt_piece_init(&question, w->en, asked, e);
    if (r < 0)
        return r;

    fixed = begin.n + question.n + prompt_bos(w->en) + ruler_answer_tokens(t);
    if (fixed >= n_tokens)
        return ruler_text_too_short(n_tokens, t, e);

    prompt_begin(&trial->prompt, w->en);
    prompt_put(&trial->prompt, begin.tokens, begin.n);
    r = ruler_text_put_list(&list, common, n_tokens - fixed, state, &trial->prompt, e);
    if (r < 0)
        return r == -ERANGE ? ruler_text_too_short(n_tokens, t, e) : r;

    prompt_put(&trial->prompt, question.tokens, question.n);
    return 0;
}

int ruler_write(const struct ruler_writer *w, enum ruler_task t, size_t n_tokens, uint64_t seed,
                struct ruler_trial *trial, struct errmsg *e)
{
    uint64_t state = splitmix64_seed(seed, t);

    assert(n_tokens <= trial->prompt.room);
    if (t == RULER_COMMON_WORDS || t == RULER_FREQUENT_WORDS)
        return ruler_text_write_list(w, t, n_tokens, &state, trial, e);

    return ruler_text_write_hidden(w, t, n_tokens, &state, trial, e);
}

/* Whether @word stands in @text, not as a part of a longer word or number. */
static bool ruler_text_has_word(const char *text, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = strcasestr(text, word); at; at = strcasestr(at + 1, word))
        if ((at == text || !isalnum((unsigned char) at[-1])) && !isalnum((unsigned char) at[n]))
            return true;
    return false;
}

double ruler_score(const struct ruler_trial *trial, const char *text)
{
    size_t n = 0;

    for (size_t i = 0; i < trial->n_answers; i++)
        n += ruler_text_has_word(text, trial->answers[i]);
    return (double) n / (double) trial->n_answers;
}
