/* See eval_measure.h. */
#include "tools/eval/eval_measure.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/eval_report.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/evaluation.h"
#include "tools/eval/subject.h"

struct compare_row {
    const struct subject *subject;
    const struct evaluation *sum;
    bool best; /* no row of the same or fewer bits has a lower KL */
};

/* By bits, then by KL. */
static int eval_compare_order(const void *a, const void *b)
{
    const struct compare_row *x = a, *y = b;
    double bits_x = subject_charged_bpd(x->subject), bits_y = subject_charged_bpd(y->subject);

    if (bits_x != bits_y)
        return bits_x < bits_y ? -1 : 1;

    return (evaluation_kl(x->sum) > evaluation_kl(y->sum)) - (evaluation_kl(x->sum) < evaluation_kl(y->sum));
}

static void eval_compare_sort_rows(const struct subject_list *l, const struct evaluation *sums,
                                   struct compare_row *rows)
{
    for (size_t i = 0; i < l->n; i++)
        rows[i] = (struct compare_row){l->items[i], &sums[i], false};
    qsort(rows, l->n, sizeof(*rows), eval_compare_order);
    for (size_t i = 0; i < l->n; i++) {
        rows[i].best = true;
        for (size_t k = 0; k < i; k++)
            rows[i].best = rows[i].best && evaluation_kl(rows[k].sum) > evaluation_kl(rows[i].sum);
    }
}

static const char *eval_compare_kind_of(const struct subject *s)
{
    return subject_other(s) ? "format" : "table";
}

static json_t *eval_compare_row_json(const struct compare_row *row)
{
    const struct subject_other *c = subject_other(row->subject);
    char digest[DIGEST_HEX_BYTES];
    json_t *json =
        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:b}", "name", subject_name(row->subject), "kind",
                  eval_compare_kind_of(row->subject), "bpd_charged", subject_charged_bpd(row->subject),
                  "bpd_true", subject_held_bpd(row->subject), "kl", evaluation_kl(row->sum), "ppl",
                  evaluation_perplexity(row->sum), "best", (int) row->best);

    if (json && c)
        (void) json_object_update_new(json, c->describe(c->state));
    if (json && !c)
        (void) json_object_set_new(
            json, "table", json_string(digest_hex(subject_table(row->subject)->table_digest, digest)));
    return json;
}

static json_t *compare_json(const struct engine *en, const struct eval_options *o,
                            const struct subject_list *l, const struct compare_row *rows)
{
    const struct evaluation *s = rows[0].sum;
    json_t *all = json_array();

    for (size_t i = 0; i < l->n; i++)
        if (json_array_append_new(all, eval_compare_row_json(&rows[i])) < 0) {
            json_decref(all);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:s, s:i, s:i, s:f, s:o}", "model",
                     engine_info(en)->name, "tokens", (json_int_t) s->n_tokens, "windows",
                     (json_int_t) s->n_windows, "window", (json_int_t) o->window, "last_window",
                     (json_int_t) s->last_window, "recent", (int) o->n_recent, "sinks", (int) l->n_sink,
                     "side", eval_side_name(o->sides), "first_layer", (int) o->first_layer, "coded_layers",
                     (int) o->n_layers, "ppl_exact", evaluation_exact_perplexity(s), "rows", all);
}

static int eval_compare_print_text(const struct engine *en, const struct eval_options *o,
                                   const struct subject_list *l, const struct compare_row *rows)
{
    _cleanup_(report_freep) struct report *r = report_new("<\t<\t>charged\t>true\t>KL\t>perplexity");
    const struct evaluation *s = rows[0].sum;

    printf("model   %s\n", engine_info(en)->name);
    printf("text    %s\n        %ju tokens in windows of %zu", o->text, (uintmax_t) s->n_tokens, o->window);
    if (s->last_window < o->window)
        printf(", the last one of %zu", s->last_window);
    putchar('\n');
    eval_print_exact(o, l);
    putchar('\n');
    for (size_t i = 0; i < l->n; i++)
        report_row(r, "%s\t%s\t%.3f\t%.3f\t%.5f\t%.3f", subject_name(rows[i].subject),
                   rows[i].best ? "*" : "", subject_charged_bpd(rows[i].subject),
                   subject_held_bpd(rows[i].subject), evaluation_kl(rows[i].sum),
                   evaluation_perplexity(rows[i].sum));
    report_row(r, "exact\t\t16.000\t16.000\t0\t%.3f", evaluation_exact_perplexity(s));
    report_print(r, stdout);

    printf("\ncharged: bits per number of coded tokens, with scales, norms and outliers\n"
           "true:    bits per number of these windows, with exact tokens at 16\n"
           "KL:      from the exact model, nats per token\n"
           "*:       no row of the same or fewer bits has a KL as low\n");
    return COMMAND_OK;
}

static int eval_compare_measure(struct engine *en, const struct eval_options *o, const struct document *text,
                                const struct subject_list *l, struct evaluation *sums, struct errmsg *e)
{
    _cleanup_(progress_end) struct progress p = {0};
    const struct evaluation_options eo = {.n_tokens = o->n_tokens, .window = o->window};

    progress_start(&p, "evaluating", "tokens",
                   (1.0 + (double) l->n) * (double) evaluation_tokens(&eo, text->n_tokens), o->common.quiet);
    return evaluation_run(en, l->items, l->n, text->tokens, text->n_tokens, &eo, &p, sums, e);
}

int eval_compare(struct engine *en, const struct eval_options *o, const struct document *text)
{
    _cleanup_(subject_list_deinit) struct subject_list l = {.n = 0};
    struct evaluation sums[EVAL_SUBJECTS_MAX];
    struct compare_row rows[EVAL_SUBJECTS_MAX];
    struct errmsg e = {""};
    int r = subject_list_open(en, o, false, &l, &e);

    if (r == 0)
        r = eval_compare_measure(en, o, text, &l, sums, &e);
    if (r < 0)
        return command_fail("%s", e.text);

    eval_compare_sort_rows(&l, sums, rows);
    return o->common.json ? report_json(compare_json(en, o, &l, rows))
                          : eval_compare_print_text(en, o, &l, rows);
}
