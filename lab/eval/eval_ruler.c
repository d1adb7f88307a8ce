/* See lab_eval.h. */
#include "lab/eval/lab_eval.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "lab/eval/ruler.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/subject.h"

static const char *eval_ruler_task_name(const struct ruler_options *o, size_t task)
{
    return task < o->n_tasks ? ruler_task_name(o->tasks[task]) : "mean";
}

/* ---- JSON ---- */

static json_t *eval_ruler_task_json(const struct ruler *r, size_t subject, size_t length, size_t task)
{
    struct ruler_result v;

    if (ruler_result(r, subject, length, task, &v) < 0)
        return NULL;

    return json_pack("{s:i, s:s, s:f, s:f, s:o, s:o, s:i, s:i}", "tokens", (int) r->o->lengths[length],
                     "task", eval_ruler_task_name(r->o, task), "score", v.score, "difference",
                     v.score - v.first, "difference_low", report_json_real(v.more.low), "difference_high",
                     report_json_real(v.more.high), "lower", (int) v.n_lower, "higher", (int) v.n_higher);
}

/* All lengths and tasks of one subject, and the mean of the tasks at each length. */
static json_t *eval_ruler_row_json(const struct ruler *r, const struct subject *s, size_t subject)
{
    json_t *tasks = json_array();

    for (size_t length = 0; length < r->o->n_lengths; length++)
        for (size_t task = 0; task <= r->o->n_tasks; task++)
            if (json_array_append_new(tasks, eval_ruler_task_json(r, subject, length, task)) < 0) {
                json_decref(tasks);
                return NULL;
            }
    return json_pack("{s:s, s:f, s:f, s:o}", "name", subject_name(s), "bpd_charged", subject_charged_bpd(s),
                     "bpd_true", subject_held_bpd(s), "tasks", tasks);
}

static json_t *eval_ruler_json(const struct engine *en, const struct eval_options *o,
                               const struct subject_list *l, const struct ruler *r)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->n; i++)
        if (json_array_append_new(all, eval_ruler_row_json(r, l->items[i], i)) < 0) {
            json_decref(all);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:i, s:i, s:I, s:o}", "model", engine_info(en)->name, "trials",
                     (json_int_t) r->o->n_trials, "recent", (int) o->n_recent, "sinks", (int) l->n_sink,
                     "seed", (json_int_t) r->o->seed, "rows", all);
}

/* ---- text ---- */

/* The tasks of one subject at one length. */
static int eval_ruler_print_subject(const struct ruler *r, const struct subject *s, size_t subject,
                                    size_t length)
{
    _cleanup_(report_freep) struct report *table = NULL;
    char columns[192];

    (void) snprintf(columns, sizeof(columns),
                    "<%s, %zu tokens\t>exact\t>score\t>more\t>95 %%\t>lower\t>higher", subject_name(s),
                    r->o->lengths[length]);
    table = report_new(columns);
    for (size_t task = 0; task <= r->o->n_tasks; task++) {
        char interval[INTERVAL_BYTES];
        struct ruler_result v;

        if (ruler_result(r, subject, length, task, &v) < 0)
            return -ENOMEM;

        report_row(table, "%s\t%.1f\t%.1f\t%+.1f\t%s\t%zu\t%zu", eval_ruler_task_name(r->o, task),
                   100 * v.first, 100 * v.score, 100 * (v.score - v.first),
                   interval_text((struct interval){100 * v.more.low, 100 * v.more.high}, 1, interval),
                   v.n_lower, v.n_higher);
    }

    report_print(table, stdout);
    return 0;
}

static int eval_ruler_print_text(const struct engine *en, const struct eval_options *o,
                                 const struct subject_list *l, const struct ruler *r)
{
    printf("model   %s\n", engine_info(en)->name);
    printf("tasks   %zu prompts for each task and length\n", r->o->n_trials);
    eval_print_exact(o, l);
    for (size_t length = 0; length < r->o->n_lengths; length++)
        for (size_t i = 1; i < l->n; i++) {
            putchar('\n');
            if (eval_ruler_print_subject(r, l->items[i], i, length) < 0)
                return command_fail("out of memory");
        }

    putchar('\n');
    terminal_print(stdout, 8,
                   "score:  per cent of the asked words that the answers contain; exact: the exact\n"
                   "        model's, which limits what a task can show\n"
                   "more:   than the exact model's, in points, with its paired 95 %% interval\n"
                   "        (bootstrap; 3 / prompts if no prompt differs)\n"
                   "lower:  prompts with a lower score than the exact model's; higher: a higher one\n");
    return COMMAND_OK;
}

int eval_ruler(struct engine *en, const struct eval_options *o)
{
    _cleanup_(subject_list_deinit) struct subject_list l = {.n = 0};
    _cleanup_(ruler_deinit) struct ruler result = {.scores = NULL};
    _cleanup_(progress_end) struct progress p = {0};
    const struct lab_eval *x = lab_eval_of(o);
    struct ruler_options ro = {.n_trials = x->n_ruler, .n_lengths = x->n_lengths, .seed = x->seed};
    struct errmsg e = {""};
    int r;

    memcpy(ro.lengths, x->lengths, sizeof(ro.lengths));
    for (int t = 0; t < RULER_TASKS; t++)
        if (x->tasks == 0 || x->tasks >> t & 1)
            ro.tasks[ro.n_tasks++] = (enum ruler_task) t;
    progress_start(&p, "asking", "tokens", 0, o->common.quiet);
    r = subject_list_open(en, o, true, &l, &e);
    p.total = (double) l.n * (double) ruler_tokens(&ro);
    if (r == 0)
        r = ruler_run(en, l.items, l.n, &ro, &p, &result, &e);
    progress_end(&p);
    if (r < 0)
        return command_fail("%s", e.text);

    return o->common.json ? report_json(eval_ruler_json(en, o, &l, &result))
                          : eval_ruler_print_text(en, o, &l, &result);
}
