/* The synthetic tasks: what their prompts contain, how answers are scored, and how scores are compared. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/unit/tools/tiny_engine.h"
#include "tools/engine/tokenizer.h"
#include "lab/eval/ruler.h"
#include "lab/eval/ruler_words.h"
#include "tools/eval/subject.h"

enum { LENGTH = 4000 }; /* tokens; a token is a byte here */

/* A trial with its text. */
struct written {
    struct ruler_trial trial;
    char text[LENGTH + 1];
};

static void write_trial(const struct engine *en, const struct ruler_writer *w, enum ruler_task t,
                        uint64_t seed, struct written *ret)
{
    struct errmsg e = {""};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(prompt_init(&ret->trial.prompt, LENGTH, &e), 0);
    CU_ASSERT_EQUAL_FATAL(ruler_write(w, t, LENGTH, seed, &ret->trial, &e), 0);
    for (size_t i = prompt_bos(en); i < ret->trial.prompt.n; i++) {
        size_t bytes;
        const char *piece = tokenizer_piece(engine_tokenizer(en), ret->trial.prompt.tokens[i], &bytes);

        CU_ASSERT_EQUAL_FATAL(bytes, 1);
        ret->text[n++] = *piece;
    }
    ret->text[n] = '\0';
}

/* How often a word stands in a text, with a space or line end before it. */
static size_t count_word(const char *text, const char *word)
{
    size_t n = 0, length = strlen(word);

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n += at > text && at[-1] == ' ' && strchr(" .\n,?", at[length]) != NULL;
    return n;
}

static void test_words(void)
{
    for (size_t i = 0; i < RULER_NOUNS; i++) {
        CU_ASSERT(strlen(ruler_nouns[i]) < RULER_WORD_BYTES);
        for (size_t k = 0; k < i; k++)
            CU_ASSERT(strcmp(ruler_nouns[i], ruler_nouns[k]) != 0);
        for (size_t k = 0; k < RULER_SENTENCES; k++)
            CU_ASSERT_EQUAL(count_word(ruler_sentences[k], ruler_nouns[i]), 0);
    }
    for (size_t k = 0; k < RULER_SENTENCES; k++)
        CU_ASSERT_EQUAL(strcspn(ruler_sentences[k], "0123456789"), strlen(ruler_sentences[k]));
}

/* Every task fills its length, is the same for the same seed and another for another one. */
static void test_lengths_and_seeds(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = NULL;
    static struct written a, b, c;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(ruler_writer_new(en, &w, &e), 0);
    for (int t = 0; t < RULER_TASKS; t++) {
        size_t most = LENGTH - ruler_answer_tokens((enum ruler_task) t);

        write_trial(en, w, (enum ruler_task) t, 1, &a);
        write_trial(en, w, (enum ruler_task) t, 1, &b);
        write_trial(en, w, (enum ruler_task) t, 2, &c);
        CU_ASSERT(a.trial.prompt.n <= most && a.trial.prompt.n > most - 100);
        CU_ASSERT_STRING_EQUAL(a.text, b.text);
        CU_ASSERT(strcmp(a.text, c.text) != 0);
        prompt_deinit(&a.trial.prompt);
        prompt_deinit(&b.trial.prompt);
        prompt_deinit(&c.trial.prompt);
    }
}

/* Each asked number stands once, in a sentence about a thing that the question names. */
static void test_needles(void)
{
    static const struct {
        enum ruler_task task;
        size_t n_answers, n_needles;
    } cases[] = {
        {RULER_SINGLE, 1, 1},
        {RULER_MULTI_KEY, 1, 4},
        {RULER_MULTI_VALUE, 4, 4},
        {RULER_MULTI_QUERY, 4, 4},
    };
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = NULL;
    static struct written x;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(ruler_writer_new(en, &w, &e), 0);
    for (size_t i = 0; i < 4; i++) {
        const char *question;

        write_trial(en, w, cases[i].task, i, &x);
        question = strstr(x.text, "\n\nWhat ");
        CU_ASSERT_PTR_NOT_NULL_FATAL(question);
        CU_ASSERT_EQUAL(x.trial.n_answers, cases[i].n_answers);
        CU_ASSERT_EQUAL(count_word(x.text, "secret") - count_word(question, "secret"),
                        1 + cases[i].n_needles);
        for (size_t k = 0; k < x.trial.n_answers; k++) {
            char thing[RULER_WORD_BYTES] = "";
            const char *at = strstr(x.text, x.trial.answers[k]);

            CU_ASSERT_EQUAL(strlen(x.trial.answers[k]), 5);
            CU_ASSERT_EQUAL(count_word(x.text, x.trial.answers[k]), 1);
            CU_ASSERT_PTR_NOT_NULL_FATAL(at);
            while (at > x.text && strncmp(at, "of the ", 7) != 0)
                at--;
            CU_ASSERT_EQUAL(sscanf(at, "of the %15[a-z] is", thing), 1);
            CU_ASSERT(strlen(thing) > 0 && count_word(question, thing) == 2);
        }
        prompt_deinit(&x.trial.prompt);
    }
}

/* The five names are assigned one after the other, the first one from the number that is asked for. */
static void test_variables(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = NULL;
    static struct written x;
    const char *at, *question;
    struct errmsg e = {""};
    char value[8] = "";

    CU_ASSERT_EQUAL_FATAL(ruler_writer_new(en, &w, &e), 0);
    write_trial(en, w, RULER_VARIABLES, 3, &x);
    question = strstr(x.text, "\n\nWhich ");
    CU_ASSERT_PTR_NOT_NULL_FATAL(question);
    CU_ASSERT_EQUAL_FATAL(sscanf(strstr(question, "value "), "value %5[0-9]", value), 1);
    CU_ASSERT_EQUAL(x.trial.n_answers, 5);
    at = x.text;
    for (size_t i = 0; i < 5; i++) {
        char sentence[64];

        (void) snprintf(sentence, sizeof(sentence), " Let %s = %s.", x.trial.answers[i],
                        i == 0 ? value : x.trial.answers[i - 1]);
        at = strstr(at, sentence);
        CU_ASSERT_PTR_NOT_NULL_FATAL(at);
        CU_ASSERT_EQUAL(count_word(question, x.trial.answers[i]), 0);
    }
    prompt_deinit(&x.trial.prompt);
}

/* The words that are asked for stand more often than any other word of the list. */
static void test_lists(void)
{
    static const enum ruler_task tasks[] = {RULER_COMMON_WORDS, RULER_FREQUENT_WORDS};
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = NULL;
    static struct written x;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(ruler_writer_new(en, &w, &e), 0);
    for (size_t t = 0; t < 2; t++) {
        size_t fewest = SIZE_MAX, most = 0, n_others = 0;
        char *list, *rest;

        write_trial(en, w, tasks[t], 5, &x);
        CU_ASSERT_EQUAL(x.trial.n_answers, t == 0 ? 10 : 3);
        list = strstr(x.text, "\n\n");
        CU_ASSERT_PTR_NOT_NULL_FATAL(list);
        *strstr(list + 2, "\n\n") = ' ';
        list[strlen(list) - strlen(strstr(list, "\nWhich"))] = '\0';
        for (size_t i = 0; i < x.trial.n_answers; i++) {
            size_t n = count_word(list, x.trial.answers[i]);

            fewest = n < fewest ? n : fewest;
        }
        rest = strdup(list);
        CU_ASSERT_PTR_NOT_NULL_FATAL(rest);
        for (char *word = strtok(rest, " \n"); word; word = strtok(NULL, " \n")) {
            bool asked = false;
            size_t n = count_word(list, word);

            for (size_t i = 0; i < x.trial.n_answers; i++)
                asked = asked || strcmp(word, x.trial.answers[i]) == 0;
            n_others += !asked;
            most = !asked && n > most ? n : most;
        }
        CU_ASSERT(fewest > most && most > 0 && n_others > 40);
        free(rest);
        prompt_deinit(&x.trial.prompt);
    }
}

static void test_too_short(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(ruler_writer_new(en, &w, &e), 0);
    for (int t = 0; t < RULER_TASKS; t++)
        for (size_t n = 2; n < 200; n += 30) {
            _cleanup_(prompt_deinit) struct prompt room = {0};
            struct ruler_trial trial;

            CU_ASSERT_EQUAL_FATAL(prompt_init(&room, n, &e), 0);
            trial.prompt = room;
            CU_ASSERT_EQUAL(ruler_write(w, (enum ruler_task) t, n, 1, &trial, &e), -EINVAL);
            CU_ASSERT_PTR_NOT_NULL(strstr(e.text, ruler_task_name((enum ruler_task) t)));
        }
    CU_ASSERT_EQUAL(ruler_task_find("multi-query"), RULER_MULTI_QUERY);
    CU_ASSERT_EQUAL(ruler_task_find("needle"), -1);
}

static void test_score(void)
{
    const struct ruler_trial one = {.answers = {"12345"}, .n_answers = 1},
                             two = {.answers = {"anchor", "bell"}, .n_answers = 2};

    CU_ASSERT_EQUAL(ruler_score(&one, " 12345."), 1);
    CU_ASSERT_EQUAL(ruler_score(&one, "it is 12345"), 1);
    CU_ASSERT_EQUAL(ruler_score(&one, "123456 or 012345"), 0);
    CU_ASSERT_EQUAL(ruler_score(&one, ""), 0);
    CU_ASSERT_EQUAL(ruler_score(&two, "Bell, Anchor"), 1);
    CU_ASSERT_EQUAL(ruler_score(&two, "bells and an ANCHOR"), 0.5);
}

/* Means and differences of scores given by hand. */
static void test_result(void)
{
    const struct ruler_options o = {.n_tasks = 2, .lengths = {8}, .n_lengths = 1, .n_trials = 4};
    double scores[] = {1, 1, 0, 1, /**/ 0.5, 0.5, 0.5, 0.5,  /* subject 0 */
                       1, 0, 1, 0, /**/ 0.5, 0.5, 0.5, 0.5}; /* subject 1 */
    const struct ruler r = {&o, 2, scores};
    struct ruler_result v;

    CU_ASSERT_EQUAL_FATAL(ruler_result(&r, 1, 0, 0, &v), 0);
    CU_ASSERT(v.first == 0.75 && v.score == 0.5 && v.n_lower == 2 && v.n_higher == 1);
    CU_ASSERT(v.more.low < -0.25 && v.more.high > -0.25 && v.more.low >= -1 && v.more.high <= 1);
    CU_ASSERT_EQUAL_FATAL(ruler_result(&r, 1, 0, 1, &v), 0);
    CU_ASSERT(v.first == 0.5 && v.score == 0.5 && v.n_lower + v.n_higher == 0);
    CU_ASSERT(v.more.low == -0.75 && v.more.high == 0.75); /* 3 / 4 */
    {
        struct ruler_options two = o;
        double equal[] = {0, 1, /**/ 0, 1};
        const struct ruler few = {&two, 2, equal};

        two.n_tasks = 1, two.n_trials = 2;
        CU_ASSERT_EQUAL_FATAL(ruler_result(&few, 1, 0, 0, &v), 0);
        CU_ASSERT(v.more.low == -1 && v.more.high == 1); /* not 3 / 2 */
    }
    CU_ASSERT_EQUAL_FATAL(ruler_result(&r, 1, 0, 2, &v), 0);
    CU_ASSERT(v.first == 0.625 && v.score == 0.5 && v.n_lower == 2 && v.n_higher == 1);
    CU_ASSERT_EQUAL_FATAL(ruler_result(&r, 0, 0, 2, &v), 0);
    CU_ASSERT(v.more.low == -3 / 8.0 && v.more.high == 3 / 8.0);
}

/* The same model twice has no difference in any task and length. */
static void test_run(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(subject_freep) struct subject *a = NULL;
    _cleanup_(subject_freep) struct subject *b = NULL;
    _cleanup_(ruler_deinit) struct ruler got = {0};
    const struct ruler_options o = {.tasks = {RULER_SINGLE, RULER_VARIABLES},
                                    .n_tasks = 2,
                                    .lengths = {600, 700},
                                    .n_lengths = 2,
                                    .n_trials = 2};
    struct progress p = silent();
    struct ruler_result v;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &a, &e), 0);
    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &b, &e), 0);
    CU_ASSERT_EQUAL_FATAL(ruler_run(en, (struct subject *[]){a, b}, 2, &o, &p, &got, &e), 0);
    CU_ASSERT_EQUAL(ruler_tokens(&o), 2 * 2 * (600 + 700));
    for (size_t length = 0; length < 2; length++) {
        CU_ASSERT_EQUAL_FATAL(ruler_result(&got, 1, length, 2, &v), 0);
        CU_ASSERT(v.score == v.first && v.score < 0.5 && v.n_lower + v.n_higher == 0);
    }
}

const struct test_case test_cases[] = {
    TEST(test_words),   TEST(test_lengths_and_seeds),
    TEST(test_needles), TEST(test_variables),
    TEST(test_lists),   TEST(test_too_short),
    TEST(test_score),   TEST(test_result),
    TEST(test_run),     TEST_END,
};
const char test_suite[] = "ruler";
