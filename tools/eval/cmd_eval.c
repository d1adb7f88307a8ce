/* kvcobra eval: compares compressed caches with the exact model on a text, and counts their bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_extension.h"
#include "tools/eval/eval_measure.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/eval_subjects.h"

/* Whether the model has the layers and the context that the options need. */
static int cmd_eval_check_model(const struct engine *en, const struct eval_options *o, struct errmsg *e)
{
    char what[48];

    if (o->first_layer + o->n_layers > engine_geometry(en)->n_layers)
        return fail(e, -EINVAL, "%s has layers 0 to %u; --layers goes to %u", o->model,
                    engine_geometry(en)->n_layers - 1, o->first_layer + o->n_layers - 1);

    (void) snprintf(what, sizeof(what), "--window %zu", o->window);
    return eval_check_length(en, o, o->window, what, e);
}

struct cmd_eval_texts {
    struct document items[EVAL_TEXTS_MAX];
    size_t n;
};

static void cmd_eval_texts_deinit(struct cmd_eval_texts *t)
{
    while (t->n > 0)
        document_deinit(&t->items[--t->n]);
}

static int cmd_eval_load(const struct engine *en, const struct eval_options *o, struct cmd_eval_texts *ret,
                         struct errmsg *e)
{
    for (size_t i = 0; i < o->n_texts; i++) {
        int r = document_load(en, o->texts[i], &ret->items[i], e);

        if (r < 0)
            return r;

        ret->n++;
        if (ret->items[i].n_tokens < 2)
            return fail(e, -EINVAL, "%s has a single token, and nothing can be predicted: give longer text",
                        o->texts[i]);
        if (ret->items[i].n_tokens < o->n_tokens && o->n_generated == 0)
            command_note(&o->common, "%s has only %zu tokens; all of them are used", o->texts[i],
                         ret->items[i].n_tokens);
    }

    return 0;
}

int eval_main(const struct eval_extension *x, void *extra, int argc, char **argv)
{
    struct eval_options o = {.extension = x, .extra = extra, .n_recent = -1, .n_sink = EVAL_SINKS_OF_TABLE};
    const struct engine_options eo = {0};
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(cmd_eval_texts_deinit) struct cmd_eval_texts texts = {.n = 0};
    struct errmsg e = {""};
    int r;

    eval_arguments_read(argc, argv, &o);
    r = engine_open(o.model, &eo, &en, &e);
    if (r == 0)
        r = cmd_eval_check_model(en, &o, &e);
    if (r == 0)
        r = cmd_eval_load(en, &o, &texts, &e);
    if (r < 0)
        return command_fail("%s", e.text);
    if (x && o.is_other) /* only an extension sets it */
        return x->run(en, &o, texts.items);
    if (o.n_generated > 0)
        return eval_generate(en, &o, texts.items);
    if (o.hits)
        return eval_hits(en, &o, texts.items);
    if (eval_has_texts(&o))
        return eval_texts(en, &o, texts.items);

    return o.n_tables == 1 && o.n_added == 0 ? eval_table(en, &o, texts.items)
                                             : eval_compare(en, &o, texts.items);
}

static int cmd_eval_run(int argc, char **argv)
{
    return eval_main(NULL, NULL, argc, argv);
}

COMMAND(cmd_eval) = {
    .name = "eval",
    .summary = "compare tables with the exact model, count bytes",
    .run = cmd_eval_run,
    .rank = 50,
    .related = "solve",
};
