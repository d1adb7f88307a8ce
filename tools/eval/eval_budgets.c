/* See eval_budgets.h. */
#include "tools/eval/eval_budgets.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/subject.h"

int eval_budgets_compare(const struct eval_options *o, struct eval_budgets *ret, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *first = NULL;
    int r = table_load(o->tables[0], &first, e);

    for (size_t i = 0; r == 0 && i < o->n_tables; i++) {
        _cleanup_(table_unrefp) struct table *t = NULL;

        r = table_load(o->tables[i], &t, e);
        if (r < 0)
            return r;
        if (t->geometry.n_layers != first->geometry.n_layers ||
            t->geometry.n_kv_heads != first->geometry.n_kv_heads || t->geometry.d != first->geometry.d)
            return fail(e, -EINVAL, "%s and %s are for different models: their heads cannot be compared",
                        o->tables[0], o->tables[i]);

        table_compare(first, t, ret[i].side);
    }

    return r;
}

/* KL of a table over that of the first one; NaN if the first one has none. */
static double eval_budgets_ratio(const struct texts *texts, size_t i)
{
    return texts->rows[0].kl > 0 ? texts->rows[i].kl / texts->rows[0].kl : NAN;
}

#define CELL_BYTES 16
static const char *eval_budgets_number(double x, char ret[static CELL_BYTES])
{
    (void) snprintf(ret, CELL_BYTES, isnan(x) ? "-" : "%.3f", x);
    return ret;
}

void eval_budgets_print(const struct eval_options *o, const struct eval_budgets *b,
                        const struct subject_list *l, const struct texts *texts)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<table\t>K corr.\t>V corr.\t>K same b\t>V same b\t>K |dr|\t>V |dr|\t>mean KL\t>to first");

    for (size_t i = 0; i < o->n_tables; i++) {
        const struct table_comparison *k = &b[i].side[SIDE_K], *v = &b[i].side[SIDE_V];
        char text[3][CELL_BYTES];

        report_row(r, "%s\t%s\t%s\t%.0f %%\t%.0f %%\t%.2f\t%.2f\t%.5f\t%s", subject_name(l->items[i]),
                   eval_budgets_number(k->budget_correlation, text[0]),
                   eval_budgets_number(v->budget_correlation, text[1]), 100 * k->same_width,
                   100 * v->same_width, k->rank_difference, v->rank_difference, texts->rows[i].kl,
                   eval_budgets_number(eval_budgets_ratio(texts, i), text[2]));
    }

    report_print(r, stdout);

    putchar('\n');
    terminal_print(stdout, 9,
                   "corr.:   correlation of the heads' budgets with the first table's, K and V\n"
                   "same b:  heads whose coordinates have the same mean width, in whole bits\n"
                   "|dr|:    mean difference of the stored coordinates per head\n"
                   "to first: KL divided by the first table's\n");
}

json_t *eval_budgets_json(const struct eval_options *o, const struct eval_budgets *b,
                          const struct subject_list *l, const struct texts *texts)
{
    json_t *all = json_array();

    for (size_t i = 0; i < o->n_tables; i++) {
        const struct table_comparison *k = &b[i].side[SIDE_K], *v = &b[i].side[SIDE_V];
        json_t *one = json_pack(
            "{s:s, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:o}", "name", subject_name(l->items[i]),
            "k_correlation", report_json_real(k->budget_correlation), "v_correlation",
            report_json_real(v->budget_correlation), "k_same_width", k->same_width, "v_same_width",
            v->same_width, "k_rank_difference", k->rank_difference, "v_rank_difference", v->rank_difference,
            "kl", texts->rows[i].kl, "kl_ratio", report_json_real(eval_budgets_ratio(texts, i)));

        if (json_array_append_new(all, one) < 0) {
            json_decref(all);
            return NULL;
        }
    }

    return all;
}
