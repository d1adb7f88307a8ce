/* See lab_eval.h. */
#include "lab/eval/lab_eval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "lab/eval/retrieval.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/interval.h"
#include "tools/eval/subject.h"

static double eval_retrieval_percent(struct retrieval_share s)
{
    return s.asked ? 100.0 * (double) s.found / (double) s.asked : 0;
}

static size_t eval_retrieval_asked(const struct interval_pairs *p)
{
    return p->both + p->lost + p->won + p->neither;
}

/* Keys that this row found more than the exact model, as a share of those asked. */
static double eval_retrieval_difference(const struct interval_pairs *p)
{
    return ((double) p->won - (double) p->lost) / (double) eval_retrieval_asked(p);
}

/* "78 %"; "" for no keys */
#define CELL_BYTES 16
static const char *eval_retrieval_cell(struct retrieval_share s, char ret[static CELL_BYTES])
{
    if (s.asked == 0)
        return "";

    (void) snprintf(ret, CELL_BYTES, "%.0f %%", eval_retrieval_percent(s));
    return ret;
}

/* ---- JSON ---- */

static json_t *eval_retrieval_share_json(struct retrieval_share s, const char *what, double value)
{
    return json_pack("{s:f, s:i, s:i}", what, value, "found", (int) s.found, "asked", (int) s.asked);
}

/* The keys of one length. */
static json_t *eval_retrieval_length_json(struct retrieval_share s, const struct interval_pairs *p,
                                          size_t length)
{
    json_t *json = eval_retrieval_share_json(s, "tokens", (double) length);

    if (json && s.asked > 0) {
        struct interval in = interval_difference(p);

        (void) json_object_update_new(
            json, json_pack("{s:i, s:i, s:f, s:f, s:f, s:f}", "lost", (int) p->lost, "won", (int) p->won,
                            "difference", eval_retrieval_difference(p), "difference_low", in.low,
                            "difference_high", in.high, "p", interval_mcnemar(p->lost, p->won)));
    }

    return json;
}

static json_t *eval_retrieval_row_json(const struct subject *s, const struct retrieval *v,
                                       const struct retrieval_options *ro)
{
    json_t *lengths = json_array(), *depths = json_array();
    struct interval in = interval_share(v->all.found, v->all.asked), paired = interval_difference(&v->pairs);

    for (size_t i = 0; i < ro->n_lengths; i++) /* on failure json_pack() fails below */
        (void) json_array_append_new(
            lengths, eval_retrieval_length_json(v->by_length[i], &v->pairs_by_length[i], ro->lengths[i]));
    for (size_t i = 0; i < RETRIEVAL_DEPTHS; i++)
        (void) json_array_append_new(depths,
                                     eval_retrieval_share_json(v->by_depth[i], "depth", retrieval_depth(i)));
    return json_pack(
        "{s:s, s:f, s:f, s:i, s:i, s:f, s:f, s:f, s:i, s:i, s:f, s:f, s:f, s:f, s:o, s:o}", "name",
        subject_name(s), "bpd_charged", subject_charged_bpd(s), "bpd_true", subject_held_bpd(s), "found",
        (int) v->all.found, "asked", (int) v->all.asked, "share", eval_retrieval_percent(v->all) / 100, "low",
        in.low, "high", in.high, "lost", (int) v->pairs.lost, "won", (int) v->pairs.won, "difference",
        eval_retrieval_difference(&v->pairs), "difference_low", paired.low, "difference_high", paired.high,
        "p", interval_mcnemar(v->pairs.lost, v->pairs.won), "lengths", lengths, "depths", depths);
}

static json_t *eval_retrieval_result_json(const struct engine *en, const struct eval_options *o,
                                          const struct subject_list *l, const struct retrieval *sums,
                                          const struct retrieval_options *ro)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->n; i++)
        if (json_array_append_new(all, eval_retrieval_row_json(l->items[i], &sums[i], ro)) < 0) {
            json_decref(all);
            return NULL;
        }
    return json_pack("{s:s, s:i, s:i, s:I, s:i, s:i, s:I, s:o}", "model", engine_info(en)->name, "keys",
                     (int) ro->n_keys, "together", (int) ro->n_together, "window", (json_int_t) o->window,
                     "recent", (int) o->n_recent, "sinks", (int) l->n_sink, "seed", (json_int_t) ro->seed,
                     "rows", all);
}

/* ---- text ---- */

/* A row per subject: its keys of one length, or of all lengths. @what: the first column's title. */
static void eval_retrieval_print_length(const struct subject_list *l, const struct retrieval *sums,
                                        size_t length, bool all, const char *what)
{
    _cleanup_(report_freep) struct report *r = NULL;
    char columns[160];

    (void) snprintf(columns, sizeof(columns), "<%s\t>charged\t>found\t>95 %%\t>lost\t>won\t>more\t>95 %%\t>p",
                    what);
    r = report_new(columns);
    for (size_t i = 0; i < l->n; i++) {
        const struct retrieval *v = &sums[i];
        struct retrieval_share s = all ? v->all : v->by_length[length];
        const struct interval_pairs *p = all ? &v->pairs : &v->pairs_by_length[length];
        struct interval in = interval_share(s.found, s.asked), more = interval_difference(p);

        if (i == 0)
            report_row(r, "%s\t%.3f\t%.0f %%\t%.0f-%.0f", subject_name(l->items[i]),
                       subject_charged_bpd(l->items[i]), eval_retrieval_percent(s), 100 * in.low,
                       100 * in.high);
        else
            report_row(r, "%s\t%.3f\t%.0f %%\t%.0f-%.0f\t%zu\t%zu\t%+.1f\t%+.1f to %+.1f\t%.3f",
                       subject_name(l->items[i]), subject_charged_bpd(l->items[i]), eval_retrieval_percent(s),
                       100 * in.low, 100 * in.high, p->lost, p->won, 100 * eval_retrieval_difference(p),
                       100 * more.low, 100 * more.high, interval_mcnemar(p->lost, p->won));
    }

    report_print(r, stdout);
}

static void eval_retrieval_print_lengths(const struct subject_list *l, const struct retrieval *sums,
                                         const struct retrieval_options *ro)
{
    for (size_t i = 0; i < ro->n_lengths; i++) {
        char what[32];

        if (sums[0].by_length[i].asked == 0)
            continue;

        (void) snprintf(what, sizeof(what), "%zu tokens", ro->lengths[i]);
        eval_retrieval_print_length(l, sums, i, false, what);
        putchar('\n');
    }

    eval_retrieval_print_length(l, sums, 0, true, "all lengths");
}

static void eval_retrieval_print_depths(const struct subject_list *l, const struct retrieval *sums)
{
    _cleanup_(report_freep) struct report *r = NULL;
    char columns[160];

    (void) snprintf(columns, sizeof(columns), "<\t>at %.1f\t>%.1f\t>%.1f\t>%.1f\t>%.1f", retrieval_depth(0),
                    retrieval_depth(1), retrieval_depth(2), retrieval_depth(3), retrieval_depth(4));
    r = report_new(columns);
    for (size_t i = 0; i < l->n; i++) {
        const struct retrieval_share *d = sums[i].by_depth;
        char c[RETRIEVAL_DEPTHS][CELL_BYTES];

        report_row(r, "%s\t%s\t%s\t%s\t%s\t%s", subject_name(l->items[i]), eval_retrieval_cell(d[0], c[0]),
                   eval_retrieval_cell(d[1], c[1]), eval_retrieval_cell(d[2], c[2]),
                   eval_retrieval_cell(d[3], c[3]), eval_retrieval_cell(d[4], c[4]));
    }

    report_print(r, stdout);
}

static int eval_retrieval_print_text(const struct engine *en, const struct eval_options *o,
                                     const struct subject_list *l, const struct retrieval *sums,
                                     const struct retrieval_options *ro)
{
    printf("model   %s\n", engine_info(en)->name);
    terminal_print(stdout, 8,
                   "keys    %zu of five digits, %zu in each text, hidden in the tokens of\n        %s\n",
                   ro->n_keys, ro->n_together, o->text);
    eval_print_exact(o, l);
    putchar('\n');
    eval_retrieval_print_lengths(l, sums, ro);
    putchar('\n');
    eval_retrieval_print_depths(l, sums);
    terminal_print(stdout, 9,
                   "\ncharged: bits per number of coded tokens, with scales, norms and outliers\n"
                   "95 %%:    interval of the share (Wilson)\n"
                   "lost:    found by the exact model and not here; won: found here only\n"
                   "more:    share found here minus the exact model's, in points, with its\n"
                   "         paired 95 %% interval (Newcombe)\n"
                   "p:       of so uneven lost and won if both were equally good (McNemar)\n"
                   "at:      share found by depth of the key in the text\n");
    return COMMAND_OK;
}

int eval_retrieval(struct engine *en, const struct eval_options *o, const struct document *text)
{
    _cleanup_(subject_list_deinit) struct subject_list l = {.n = 0};
    _cleanup_(progress_end) struct progress p = {0};
    const struct lab_eval *x = lab_eval_of(o);
    struct retrieval_options ro = {.n_keys = x->n_keys,
                                   .n_together = x->n_together > 0 ? x->n_together : 1,
                                   .n_lengths = x->n_lengths,
                                   .seed = x->seed};
    struct retrieval sums[EVAL_SUBJECTS_MAX + 1];
    struct errmsg e = {""};
    int r;

    memcpy(ro.lengths, x->lengths, sizeof(ro.lengths));
    progress_start(&p, "retrieving keys", "tokens", 0, o->common.quiet);
    r = subject_list_open(en, o, true, &l, &e);
    p.total = (double) l.n * (double) retrieval_tokens(&ro);
    if (r == 0)
        r = retrieval_run(en, l.items, l.n, text->tokens, text->n_tokens, &ro, &p, sums, &e);
    progress_end(&p);
    if (r != 0)
        return command_fail("%s", e.text);

    return o->common.json ? report_json(eval_retrieval_result_json(en, o, &l, sums, &ro))
                          : eval_retrieval_print_text(en, o, &l, sums, &ro);
}
