/*
 * Synthetic long-context tasks in the manner of RULER (Hsieh et al., 2024) that need no data set. Texts,
 * words and questions are the project's own, so scores cannot be compared with published ones, only with
 * those of the exact model on the same prompts.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lab/eval/prompt.h"

struct engine;
struct errmsg;
struct ruler_writer;

/*
 * single          one sentence with a number among others; the number is asked for
 * multi-key       four sentences with numbers; one of them is asked for
 * multi-value     four numbers of one thing; all are asked for
 * multi-query     four sentences with numbers; all are asked for
 * variables       a chain of five assignments; the names with its value are asked for
 * common-words    a list of words; the ten that stand in it most often are asked for
 * frequent-words  invented words with frequencies 1, 1/4, 1/9 ...; the first three are asked for
 */
enum ruler_task {
    RULER_SINGLE,
    RULER_MULTI_KEY,
    RULER_MULTI_VALUE,
    RULER_MULTI_QUERY,
    RULER_VARIABLES,
    RULER_COMMON_WORDS,
    RULER_FREQUENT_WORDS,
    RULER_TASKS
};

const char *ruler_task_name(enum ruler_task t);
int ruler_task_find(const char *name); /* -1: no such task */

/* Tokens that a subject may write as an answer. */
size_t ruler_answer_tokens(enum ruler_task t);

enum { RULER_ANSWERS_MAX = 10, RULER_WORD_BYTES = 16 };

/* One prompt and the words that belong into the answer. */
struct ruler_trial {
    struct prompt prompt;
    char answers[RULER_ANSWERS_MAX][RULER_WORD_BYTES];
    size_t n_answers;
};

/* Holds the tokens of the sentences and words. */
int ruler_writer_new(const struct engine *en, struct ruler_writer **ret_writer, struct errmsg *e);
struct ruler_writer *ruler_writer_free(struct ruler_writer *w);
static inline void ruler_writer_freep(struct ruler_writer **w)
{
    *w = ruler_writer_free(*w);
}

/**
 * ruler_write() - write a prompt
 * @n_tokens: of the prompt and the answer; the prompt is shorter by less than one sentence or ten words
 * @seed:     the same seed gives the same prompt
 * @trial:    its prompt has room for @n_tokens
 *
 * Return: 0; -EINVAL: @n_tokens are too few, sentence in @e; -ENOMEM.
 */
int ruler_write(const struct ruler_writer *w, enum ruler_task t, size_t n_tokens, uint64_t seed,
                struct ruler_trial *trial, struct errmsg *e);

/* The part of the answers that are whole words of @text, without regard to case. */
double ruler_score(const struct ruler_trial *trial, const char *text);
