/* Runs the tasks of ruler_text.h with several subjects on the same prompts. For `kvcobra eval --ruler`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/eval/interval.h"
#include "lab/eval/ruler_text.h"

struct progress;
struct subject;

enum { RULER_LENGTHS_MAX = 8 };

struct ruler_options {
    enum ruler_task tasks[RULER_TASKS];
    size_t n_tasks;
    size_t lengths[RULER_LENGTHS_MAX]; /* tokens of prompt and answer */
    size_t n_lengths;
    size_t n_trials; /* of each task and length */
    uint64_t seed;
};

struct ruler {
    const struct ruler_options *o;
    size_t n_subjects;
    double *scores; /* [n_subjects, n_lengths, n_tasks, n_trials] of 0 to 1 */
};
void ruler_deinit(struct ruler *r);

/* Most tokens of all prompts of one subject. */
size_t ruler_tokens(const struct ruler_options *o);

/**
 * ruler_run() - write each prompt and ask every subject
 * @o:   borrowed by @ret
 * @p:   started by the caller, counts tokens of prompts
 * @ret: zeroed; free it with ruler_deinit(), also after a failure
 */
int ruler_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
              const struct ruler_options *o, struct progress *p, struct ruler *ret, struct errmsg *e);

/* The result of a subject in a task, or in all of them, beside subject 0. */
struct ruler_result {
    double score, first;      /* means of this subject and of subject 0 */
    struct interval more;     /* of score - first, on the same prompts */
    size_t n_lower, n_higher; /* prompts with a lower or a higher score than subject 0's */
};

/* @length, @task: places in the options; n_tasks: the mean of the tasks. Return: 0 or -ENOMEM. */
int ruler_result(const struct ruler *r, size_t subject, size_t length, size_t task, struct ruler_result *ret);
