/* See eval_measure.h. */
#include "tools/eval/eval_measure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_budgets.h"
#include "tools/eval/eval_texts_report.h"
#include "tools/eval/subject.h"

static void eval_texts_result_deinit(struct eval_texts_result *res)
{
    for (size_t i = 0; i < res->n_recents; i++)
        subject_list_deinit(&res->lists[i]);
    texts_deinit(&res->texts);
    free(res->budgets);
}

/* The same subjects once for each recent window; all of them in @ret_all. */
static int eval_texts_open(struct engine *en, const struct eval_options *o, struct eval_texts_result *res,
                           struct subject **ret_all, struct errmsg *e)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < (o->n_recents > 0 ? o->n_recents : 1); i++) {
        struct eval_options one = *o;

        if (o->n_recents > 0)
            one.n_recent = o->recents[i];
        res->n_recents++;
        r = subject_list_open(en, &one, false, &res->lists[i], e);
        if (r == 0)
            memcpy(ret_all + i * res->lists[i].n, res->lists[i].items,
                   res->lists[i].n * sizeof(*res->lists[i].items));
    }

    return r;
}

/* Insertion sort: by bits, then by mean KL with the first recent window. */
static void eval_texts_sort(struct eval_texts_result *res)
{
    struct subject *const *items = res->lists[0].items;

    for (size_t i = 0; i < res->lists[0].n; i++) {
        double bits = subject_charged_bpd(items[i]), kl = res->texts.rows[i].kl;
        size_t at = i;

        for (; at > 0; at--) {
            size_t before = res->order[at - 1];
            double other = subject_charged_bpd(items[before]);

            if (other < bits || (other == bits && res->texts.rows[before].kl <= kl))
                break;
            res->order[at] = before;
        }
        res->order[at] = i;
    }
}

static int eval_texts_measure(struct engine *en, const struct eval_options *o, const struct document *texts,
                              struct eval_texts_result *res, struct errmsg *e)
{
    const struct evaluation_options eo = {.n_tokens = o->n_tokens, .window = o->window};
    _cleanup_(freep) struct subject **all =
        calloc(EVAL_RECENTS_MAX * EVAL_SUBJECTS_MAX, sizeof(struct subject *));
    _cleanup_(progress_end) struct progress p = {0};
    size_t n_subjects;
    int r;

    if (!all)
        return fail(e, -ENOMEM, "out of memory");

    progress_start(&p, "evaluating", "tokens", 0, o->common.quiet);
    if (o->budgets) {
        res->budgets = calloc(o->n_tables, sizeof(*res->budgets));
        if (!res->budgets)
            return fail(e, -ENOMEM, "out of memory");

        r = eval_budgets_compare(o, res->budgets, e);
        if (r < 0)
            return r;
    }

    r = eval_texts_open(en, o, res, all, e);
    if (r < 0)
        return r;

    n_subjects = res->n_recents * res->lists[0].n;
    p.total = (1.0 + (double) n_subjects) * (double) texts_tokens(texts, o->n_texts, &eo);
    return texts_run(en, all, n_subjects, res->lists[0].n, texts, o->n_texts, &eo, &p, &res->texts, e);
}

int eval_texts(struct engine *en, const struct eval_options *o, const struct document *texts)
{
    _cleanup_(eval_texts_result_deinit) struct eval_texts_result res = {.n_recents = 0};
    struct errmsg e = {""};
    int r = eval_texts_measure(en, o, texts, &res, &e);

    if (r < 0)
        return command_fail("%s", e.text);

    eval_texts_sort(&res);
    return eval_texts_print(en, o, &res);
}
