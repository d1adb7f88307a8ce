/* See eval_measure.h. */
#include "tools/eval/eval_measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/table/table.h"
#include "alloc/table/table_account.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/eval_quartiles.h"
#include "tools/eval/eval_report.h"
#include "tools/eval/evaluation.h"
#include "tools/eval/subject.h"

/* Reads the account and the sinks from the table. */
static int eval_table_read(const char *path, const struct eval_options *o, struct eval_result *ret,
                           struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    int r = table_load(path, &t, e);

    if (r < 0)
        return r;

    table_account(t, &ret->account);
    ret->n_sink = o->n_sink == EVAL_SINKS_OF_TABLE ? t->n_sink : (uint32_t) o->n_sink;
    return 0;
}

/* One of several evaluations. */
struct eval_table_part {
    uint32_t first_layer, n_layers; /* coded; n_layers 0: all */
};

/* One evaluation of @part. Results that do not depend on the part go to *ret. */
static int eval_table_measure(struct engine *en, const struct eval_options *o, const struct document *text,
                              struct eval_table_part part, struct eval_result *ret,
                              struct evaluation *ret_sum, struct errmsg *e)
{
    _cleanup_(subject_freep) struct subject *s = NULL;
    _cleanup_(progress_end) struct progress p = {0};
    struct evaluation_options eo = {.n_tokens = o->n_tokens, .window = o->window};
    const char *path = o->tables[0];
    int r;

    progress_start(&p, "evaluating", "tokens", 2.0 * (double) evaluation_tokens(&eo, text->n_tokens),
                   o->common.quiet);
    r = eval_table_read(path, o, ret, e);
    if (r < 0)
        return r;

    r = subject_table_new(en, path, NULL, 0,
                          &(struct subject_options){.n_sink = ret->n_sink,
                                                    .n_recent = o->n_recent,
                                                    .sides = o->sides,
                                                    .first_layer = part.first_layer,
                                                    .n_layers = part.n_layers},
                          &s, e);
    if (r < 0)
        return r;

    r = evaluation_run(en, &s, 1, text->tokens, text->n_tokens, &eo, &p, ret_sum, e);
    if (r < 0)
        return r;

    ret->table = *subject_table(s);
    ret->table.kernel = NULL; /* belongs to the client, which ends here */
    ret->usage = *subject_usage(s);
    return 0;
}

static int eval_table_measure_quartiles(struct engine *en, const struct eval_options *o,
                                        const struct document *text, struct eval_result *ret,
                                        struct errmsg *e)
{
    uint32_t n = engine_geometry(en)->n_layers;
    int r = 0;

    if (n < EVAL_PARTS)
        return fail(e, -EINVAL, "%s has %u layers: too few for quartiles", o->model, n);
    if (o->quartile_statistics)
        r = quartile_distortion(o->tables[0], o->quartile_statistics, o->sides, ret->part_distortion, e);
    for (uint32_t part = 0, first = 0; r == 0 && part < EVAL_PARTS; part++) {
        /* as in table_compare(): layer l is in part 4 l / n */
        uint32_t end = (n * (part + 1) + EVAL_PARTS - 1) / EVAL_PARTS;

        ret->part_layers[part] = end - first;
        r = eval_table_measure(en, o, text, (struct eval_table_part){first, end - first}, ret,
                               &ret->parts[part], e);
        first = end;
    }

    return r;
}

int eval_table(struct engine *en, const struct eval_options *o, const struct document *text)
{
    struct eval_result res = {0};
    struct errmsg e = {""};
    int r = 0;

    if (o->quartiles)
        r = eval_table_measure_quartiles(en, o, text, &res, &e);
    if (r == 0)
        r = eval_table_measure(en, o, text, (struct eval_table_part){o->first_layer, o->n_layers}, &res,
                               &res.sum, &e);
    if (r < 0)
        return command_fail("%s", e.text);

    (void) snprintf(res.model_name, sizeof(res.model_name), "%s", engine_info(en)->name);
    return eval_print(o, &res);
}
