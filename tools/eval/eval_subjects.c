/* See eval_subjects.h. */
#include "tools/eval/eval_subjects.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/terminal.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_extension.h"
#include "tools/eval/eval_report.h"
#include "tools/eval/subject.h"

/* --sinks, else the first table's, else SUBJECT_SINKS. */
static int eval_subjects_find_sinks(const struct eval_options *o, uint32_t *ret, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    int r;

    if (o->n_sink != EVAL_SINKS_OF_TABLE || o->n_tables == 0) {
        *ret = o->n_sink != EVAL_SINKS_OF_TABLE ? (uint32_t) o->n_sink : SUBJECT_SINKS;
        return 0;
    }

    r = table_load(o->tables[0], &t, e);
    if (r < 0)
        return r;

    *ret = t->n_sink;
    return 0;
}

int subject_list_open(struct engine *en, const struct eval_options *o, bool with_exact,
                      struct subject_list *ret, struct errmsg *e)
{
    struct subject_options so = {
        .n_recent = o->n_recent,
        .sides = o->sides,
        .first_layer = o->first_layer,
        .n_layers = o->n_layers,
    };
    int r = eval_subjects_find_sinks(o, &so.n_sink, e);

    *ret = (struct subject_list){.n_sink = so.n_sink};
    if (r == 0 && with_exact) {
        r = subject_exact_new(en, &ret->items[0], e);
        ret->n += r == 0;
    }

    for (size_t i = 0; r == 0 && i < o->n_tables; i++) {
        r = subject_table_new(en, o->tables[i], NULL, 0, &so, &ret->items[ret->n], e);
        ret->n += r == 0;
    }

    return r < 0 || !o->extension ? r : o->extension->open(en, o, &so, ret, e);
}

void subject_list_deinit(struct subject_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        (void) subject_free(l->items[i]);
    l->n = 0;
}

int eval_check_length(const struct engine *en, const struct eval_options *o, size_t n_tokens,
                      const char *what, struct errmsg *e)
{
    const struct engine_info *info = engine_info(en);
    uint32_t limit =
        info->window_tokens && info->window_tokens < info->n_context ? info->window_tokens : info->n_context;

    if (n_tokens > limit)
        return fail(e, -EINVAL, "%s reads at most %u tokens; %s is too long", o->model, limit, what);

    return 0;
}

/* How groups of tokens are read, with each recent window. */
static void eval_subjects_print_groups(const struct eval_options *o)
{
    bool none = o->n_recent == 0, some = o->n_recent != 0;

    for (size_t i = 1; i < o->n_recents; i++) {
        none = none || o->recents[i] == 0;
        some = some || o->recents[i] != 0;
    }

    if (none && some)
        terminal_print(stdout, 8,
                       "groups  of tokens are read, with 0 recent tokens, with the ranges of the\n"
                       "        complete group; else they are exact until they are complete and have\n"
                       "        no recent token\n");
    else if (none)
        terminal_print(stdout, 8,
                       "groups  of tokens are read with the ranges of the complete group, by every query\n");
    else
        terminal_print(stdout, 8,
                       "groups  of tokens are exact until they are complete and have no recent token\n");
}

void eval_print_exact(const struct eval_options *o, const struct subject_list *l)
{
    if (o->n_recent < 0)
        printf("exact   the first %u tokens, and the newest 64 to 127\n", l->n_sink);
    else
        printf("exact   the first %u tokens, and the newest %d", l->n_sink, o->n_recent);
    for (size_t i = 1; i < o->n_recents; i++)
        printf(" or %d", o->recents[i]);
    if (o->n_recent >= 0)
        putchar('\n');
    if (o->sides == 1u << KVC_K)
        printf("        values; only keys are read from codes\n");
    if (o->sides == 1u << KVC_V)
        printf("        keys; only values are read from codes\n");
    if (o->n_layers > 0)
        printf("        all layers but %u to %u\n", o->first_layer, o->first_layer + o->n_layers - 1);
    if (l->n_blocks > 0)
        eval_subjects_print_groups(o);
}
