/* The tables and formats of one `kvcobra eval`, opened as subjects, and the parts of reports that they
 * share. */
#pragma once

#include <stddef.h>

#include "tools/eval/eval_options.h"

struct engine;
struct errmsg;
struct subject;

struct subject_list {
    /* tables, then what the extension adds, each in the order of the command line */
    struct subject *items[EVAL_SUBJECTS_MAX + 1];
    size_t n;
    uint32_t n_sink; /* exact first tokens, equal for all */
    size_t n_blocks; /* number of those that code several tokens together */
};

/* @with_exact: the exact model comes first. Call subject_list_deinit() also after a failure. */
int subject_list_open(struct engine *en, const struct eval_options *o, bool with_exact,
                      struct subject_list *ret, struct errmsg *e);
void subject_list_deinit(struct subject_list *l);

/* -EINVAL with a sentence if the model cannot read @n_tokens at once. @what: "--window 4096" */
int eval_check_length(const struct engine *en, const struct eval_options *o, size_t n_tokens,
                      const char *what, struct errmsg *e);

/* Prints the line of every report that names the exact tokens, without the newline; then, if @l has formats
 * that code several tokens together, how their groups are read. */
void eval_print_exact(const struct eval_options *o, const struct subject_list *l);
