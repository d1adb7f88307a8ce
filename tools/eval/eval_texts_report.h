/* Printing the result of `kvcobra eval` on several texts as text or JSON; eval_texts.c fills it. */
#pragma once

#include <stddef.h>

#include "tools/eval/eval_options.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/texts.h"

struct engine;
struct eval_budgets;

/* Subject i with the j-th recent window is subject j n + i of @texts, n = lists[0].n. */
struct eval_texts_result {
    struct subject_list lists[EVAL_RECENTS_MAX]; /* [o->n_recents], or one with the default window */
    size_t n_recents;
    struct texts texts;
    size_t order[EVAL_SUBJECTS_MAX]; /* [lists[0].n] subjects by bits, then by mean KL */
    struct eval_budgets *budgets;    /* [o->n_tables] with o->budgets, else NULL */
};

/* Return: an exit code of command.h. */
int eval_texts_print(const struct engine *en, const struct eval_options *o,
                     const struct eval_texts_result *res);
