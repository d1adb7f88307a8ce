/*
 * What another program adds to `eval`: options, rows beside those of tables, and measurements in its place.
 * kvcobra adds nothing; kvcobra-lab adds other formats and trials.
 */
#pragma once

#include <argp.h>

#include "tools/eval/eval_subjects.h"

struct document;
struct subject_options;

struct eval_extension {
    const struct argp *arguments; /* its options; their input is the struct eval_options */
    const char *doc;              /* in place of that of `eval` */
    const char *rows;             /* "a --table or a --comparator": what makes a row */
    /* Sets the members of the extension in @o when all options are known; a conflict is an argp_error(). */
    void (*check)(struct eval_options *o, const struct argp_state *state);
    /* Adds @o->n_added subjects to @l. */
    int (*open)(struct engine *en, const struct eval_options *o, const struct subject_options *so,
                struct subject_list *l, struct errmsg *e);
    /* With @o->is_other: measures and prints. Return: an exit code. */
    int (*run)(struct engine *en, const struct eval_options *o, const struct document *texts);
};

/* `eval`, with what @x adds, or NULL. @extra: for @o->extra. Return: an exit code. */
int eval_main(const struct eval_extension *x, void *extra, int argc, char **argv);
