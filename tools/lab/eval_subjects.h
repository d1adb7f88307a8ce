/* The tables and formats of one `kvcobra eval`, ready to run. */
#pragma once

#include <stddef.h>

#include "tools/lab/eval_options.h"

struct engine;
struct errmsg;
struct subject;

struct subject_list {
    struct subject *items[EVAL_SUBJECTS_MAX + 1]; /* tables, then formats, each in the order asked for */
    size_t n;
    uint32_t n_sink; /* exact first tokens, the same for all */
    size_t n_blocks; /* formats that code several tokens together */
};

/* @with_exact: the exact model comes first. Free with subject_list_deinit(), whatever is returned. */
int subject_list_open(struct engine *en, const struct eval_options *o, bool with_exact,
                      struct subject_list *ret, struct errmsg *e);
void subject_list_deinit(struct subject_list *l);

/* -EINVAL with a sentence if the model cannot read @n_tokens at once. @what: "--window 4096" */
int eval_check_length(const struct engine *en, const struct eval_options *o, size_t n_tokens,
                      const char *what, struct errmsg *e);

/* The line of every report that says what stays exact, without the newline; then, if @l has them, how formats
 * that code several tokens together are read. */
void eval_print_exact(const struct eval_options *o, const struct subject_list *l);
