/* See ruler.h. */
#include "lab/eval/ruler.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

void ruler_deinit(struct ruler *r)
{
    free(r->scores);
    r->scores = NULL;
}

size_t ruler_tokens(const struct ruler_options *o)
{
    size_t n = 0;

    for (size_t length = 0; length < o->n_lengths; length++)
        for (size_t task = 0; task < o->n_tasks; task++)
            n += o->n_trials * o->lengths[length];
    return n;
}

/* The scores of one task. */
static double *ruler_scores(const struct ruler *r, size_t subject, size_t length, size_t task)
{
    const struct ruler_options *o = r->o;

    return r->scores + ((subject * o->n_lengths + length) * o->n_tasks + task) * o->n_trials;
}

static int ruler_init(struct ruler *r, struct errmsg *e)
{
    size_t n;

    if (checked_mul3(r->n_subjects, r->o->n_lengths * r->o->n_tasks, r->o->n_trials, &n))
        r->scores = calloc(n, sizeof(*r->scores));
    return r->scores ? 0 : fail(e, -ENOMEM, "out of memory for %zu prompts", r->o->n_trials);
}

static int ruler_run_trial(struct engine *en, struct subject *const *subjects, const struct ruler *r,
                           const struct ruler_trial *trial, size_t length, size_t task, size_t i,
                           struct prompt_progress *pp, struct errmsg *e)
{
    char text[PROMPT_ANSWER_BYTES];

    for (size_t subject = 0; subject < r->n_subjects; subject++) {
        int err = prompt_ask(en, subjects[subject], &trial->prompt, ruler_answer_tokens(r->o->tasks[task]),
                             pp, text, e);

        if (err < 0)
            return err;

        ruler_scores(r, subject, length, task)[i] = ruler_score(trial, text);
    }

    return 0;
}

int ruler_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
              const struct ruler_options *o, struct progress *p, struct ruler *ret, struct errmsg *e)
{
    _cleanup_(ruler_writer_freep) struct ruler_writer *w = NULL;
    struct prompt_progress pp = {p, 0};
    int r;

    *ret = (struct ruler){o, n_subjects, NULL};
    r = ruler_init(ret, e);
    if (r == 0)
        r = ruler_writer_new(en, &w, e);
    for (size_t length = 0; r == 0 && length < o->n_lengths; length++) {
        struct ruler_trial trial = {.n_answers = 0};

        r = prompt_init(&trial.prompt, o->lengths[length], e);
        for (size_t i = 0; r == 0 && i < o->n_tasks * o->n_trials; i++) {
            size_t task = i / o->n_trials, at = i % o->n_trials;
            uint64_t seed = splitmix64_seed(splitmix64_seed(o->seed, o->lengths[length]), at);

            r = ruler_write(w, o->tasks[task], o->lengths[length], seed, &trial, e);
            if (r == 0)
                r = ruler_run_trial(en, subjects, ret, &trial, length, task, at, &pp, e);
        }
        prompt_deinit(&trial.prompt);
    }

    return r;
}

/*
 * No difference in n trials does not show that there is none: differences of probability p stay unseen with
 * chance (1 - p)^n, which is 5 % at p = 3 / n.
 */
static struct interval ruler_interval_of_none(size_t n)
{
    double most = fmin(3 / (double) n, 1); /* scores are 0 to 1 */

    return (struct interval){-most, most};
}

/* Scores of the tasks from @task to @end. */
static struct ruler_result ruler_result_of(const struct ruler *r, size_t subject, size_t length, size_t task,
                                           size_t end, double *differences)
{
    struct interval_sample samples[RULER_TASKS];
    size_t n = r->o->n_trials, n_tasks = end - task;
    struct ruler_result ret = {0};

    for (size_t k = 0; k < n_tasks; k++) {
        const double *first = ruler_scores(r, 0, length, task + k),
                     *mine = ruler_scores(r, subject, length, task + k);

        for (size_t i = 0; i < n; i++) {
            ret.score += mine[i] / (double) (n * n_tasks);
            ret.first += first[i] / (double) (n * n_tasks);
            ret.n_lower += mine[i] < first[i];
            ret.n_higher += mine[i] > first[i];
            differences[k * n + i] = mine[i] - first[i];
        }
        samples[k] = (struct interval_sample){differences + k * n, NULL, n};
    }

    if (ret.n_lower + ret.n_higher == 0)
        ret.more = ruler_interval_of_none(n * n_tasks);
    else
        ret.more = interval_bootstrap(samples, n_tasks, task);
    return ret;
}

int ruler_result(const struct ruler *r, size_t subject, size_t length, size_t task, struct ruler_result *ret)
{
    bool all = task == r->o->n_tasks;
    _cleanup_(freep) double *differences = calloc(r->o->n_tasks * r->o->n_trials, sizeof(*differences));

    if (!differences)
        return -ENOMEM;

    *ret = ruler_result_of(r, subject, length, all ? 0 : task, all ? r->o->n_tasks : task + 1, differences);
    return 0;
}
