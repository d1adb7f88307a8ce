/*
 * The bits that tables give to each head, compared with the first table's: the paper's "Calibration
 * robustness", whose measures say little about accuracy. `kvcobra eval --budgets` prints the KL beside them.
 */
#pragma once

#include "alloc/table/table_account.h"
#include "tools/command/report.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/texts.h"

struct errmsg;
struct subject_list;

struct eval_budgets {
    struct table_comparison side[2]; /* K, V: of the first table and this one */
};

/* @ret: [o->n_tables]. Return: 0; -EINVAL: tables of different geometries; sentence in @e. */
int eval_budgets_compare(const struct eval_options *o, struct eval_budgets *ret, struct errmsg *e);

/* Prints a table. @l: subjects whose first o->n_tables are the tables; @texts: their results. */
void eval_budgets_print(const struct eval_options *o, const struct eval_budgets *b,
                        const struct subject_list *l, const struct texts *texts);

/* [{"name": ..., "k_correlation": ..., "kl_ratio": ...}, ...]; NULL when out of memory. */
json_t *eval_budgets_json(const struct eval_options *o, const struct eval_budgets *b,
                          const struct subject_list *l, const struct texts *texts);
