/* See eval_measure.h. */
#include "tools/eval/eval_measure.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/engine/engine.h"
#include "tools/eval/continuation.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/subject.h"

static double eval_generate_perplexity(const struct continuation *c, const struct continuation_options *o)
{
    return exp(c->nll / ((double) o->n_prompts * (double) o->n_tokens));
}

static size_t eval_generate_count_whole(const struct continuation *c, const struct continuation_options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n_prompts; i++)
        n += c->alike[i] == o->n_tokens;
    return n;
}

/* [{"first": 1, "last": 64, "kl": ...}, ...]: parts that have tokens */
static json_t *eval_generate_along_json(const struct continuation *c, const struct continuation_options *o)
{
    json_t *all = json_array();

    for (size_t part = 0; part < CONTINUATION_PARTS; part++) {
        size_t first, end;

        continuation_part(part, o->n_tokens, &first, &end);
        if (end > first &&
            json_array_append_new(all, json_pack("{s:I, s:I, s:f}", "first", (json_int_t) first + 1, "last",
                                                 (json_int_t) end, "kl", c->kl[part])) < 0) {
            json_decref(all);
            return NULL;
        }
    }

    return all;
}

static json_t *eval_generate_row_json(const struct subject *s, struct continuation *c,
                                      const struct continuation_options *o)
{
    json_t *alike = json_array();

    for (size_t i = 0; i < o->n_prompts; i++) /* on failure json_pack() fails below */
        (void) json_array_append_new(alike, json_integer((json_int_t) c->alike[i]));
    return json_pack("{s:s, s:f, s:f, s:o, s:I, s:I, s:I, s:i, s:f, s:o}", "name", subject_name(s),
                     "bpd_charged", subject_charged_bpd(s), "bpd_true", subject_held_bpd(s), "alike", alike,
                     "alike_lower_quartile", (json_int_t) continuation_quantile(c->alike, o->n_prompts, 0.25),
                     "alike_median", (json_int_t) continuation_quantile(c->alike, o->n_prompts, 0.5),
                     "alike_upper_quartile", (json_int_t) continuation_quantile(c->alike, o->n_prompts, 0.75),
                     "never_differ", (int) eval_generate_count_whole(c, o), "ppl_exact",
                     eval_generate_perplexity(c, o), "along", eval_generate_along_json(c, o));
}

static json_t *eval_generate_result_json(const struct engine *en, const struct eval_options *o,
                                         const struct subject_list *l, struct continuation *sums,
                                         const struct continuation_options *co)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->n; i++)
        if (json_array_append_new(all, eval_generate_row_json(l->items[i], &sums[i], co)) < 0) {
            json_decref(all);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:I, s:I, s:i, s:i, s:o}", "model", engine_info(en)->name, "prompts",
                     (json_int_t) co->n_prompts, "prompt_tokens", (json_int_t) co->prompt_tokens, "tokens",
                     (json_int_t) co->n_tokens, "recent", (int) o->n_recent, "sinks", (int) l->n_sink, "rows",
                     all);
}

/* KL by part of the text; the first column of each row is its name. */
static void eval_generate_print_along(const struct subject_list *l, const struct continuation *sums,
                                      const struct continuation_options *co)
{
    _cleanup_(report_freep) struct report *r = NULL;
    char columns[160] = "<KL of generated tokens";

    for (size_t part = 0; part < CONTINUATION_PARTS; part++) {
        size_t first, end, n = strlen(columns);

        continuation_part(part, co->n_tokens, &first, &end);
        if (end > first)
            (void) snprintf(columns + n, sizeof(columns) - n, "\t>%zu-%zu", first + 1, end);
    }

    r = report_new(columns);
    for (size_t i = 1; i < l->n; i++) { /* cells of empty parts, which come last, have no column */
        const double *kl = sums[i].kl;
        char row[256];
        int n = snprintf(row, sizeof(row), "%s", subject_name(l->items[i]));

        for (size_t part = 0; part < CONTINUATION_PARTS; part++) {
            size_t first, end;

            continuation_part(part, co->n_tokens, &first, &end);
            if (end > first)
                n += snprintf(row + n, sizeof(row) - (size_t) n, "\t%.5f", kl[part]);
        }
        report_row(r, "%s", row);
    }

    report_print(r, stdout);
}

static int eval_generate_print_text(const struct engine *en, const struct eval_options *o,
                                    const struct subject_list *l, struct continuation *sums,
                                    const struct continuation_options *co)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<\t>charged\t>a quarter by\t>half by\t>three by\t>never\t>perplexity");

    printf("model   %s\n", engine_info(en)->name);
    terminal_print(stdout, 8,
                   "text    %s\n        %zu prompts of %zu tokens, %zu tokens generated for each\n", o->text,
                   co->n_prompts, co->prompt_tokens, co->n_tokens);
    eval_print_exact(o, l);
    putchar('\n');
    for (size_t i = 0; i < l->n; i++) {
        size_t *alike = sums[i].alike, n = co->n_prompts;

        report_row(r, "%s\t%.3f\t%zu\t%zu\t%zu\t%zu of %zu\t%.3f", subject_name(l->items[i]),
                   subject_charged_bpd(l->items[i]), continuation_quantile(alike, n, 0.25),
                   continuation_quantile(alike, n, 0.5), continuation_quantile(alike, n, 0.75),
                   eval_generate_count_whole(&sums[i], co), n, eval_generate_perplexity(&sums[i], co));
    }

    report_print(r, stdout);
    putchar('\n');
    eval_generate_print_along(l, sums, co);
    terminal_print(stdout, 12,
                   "\ncharged:    bits per number of coded tokens, with scales, norms and outliers\n"
                   "by:         equal tokens before a quarter, half, three quarters of the texts\n"
                   "            differ from those of the exact model\n"
                   "never:      texts that do not differ\n"
                   "perplexity: of the exact model on the generated text; repetitions make it low\n"
                   "KL:         from the exact model, nats per token, when both read its text\n");
    return COMMAND_OK;
}

/* The number of prompts in the text, and their lengths. */
static int eval_generate_plan(const struct engine *en, const struct eval_options *o,
                              const struct document *text, struct continuation_options *ret, struct errmsg *e)
{
    size_t n = text->n_tokens < o->n_tokens ? text->n_tokens : o->n_tokens;
    char what[80];

    *ret = (struct continuation_options){n / o->window, o->window, o->n_generated};
    (void) snprintf(what, sizeof(what), "--window %zu and --generate %zu", o->window, o->n_generated);
    if (ret->n_prompts == 0)
        return fail(e, -EINVAL, "%s: %zu tokens are too few for a prompt of %zu", o->text, n, o->window);

    return eval_check_length(en, o, o->window + o->n_generated, what, e);
}

int eval_generate(struct engine *en, const struct eval_options *o, const struct document *text)
{
    _cleanup_(subject_list_deinit) struct subject_list l = {.n = 0};
    _cleanup_(progress_end) struct progress p = {0};
    _cleanup_(freep) size_t *alike = NULL;
    struct continuation sums[EVAL_SUBJECTS_MAX + 1];
    struct continuation_options co = {0};
    struct errmsg e = {""};
    int r = eval_generate_plan(en, o, text, &co, &e);

    progress_start(&p, "generating", "texts", 0, o->common.quiet);
    if (r == 0)
        r = subject_list_open(en, o, true, &l, &e);
    p.total = (double) l.n * (double) co.n_prompts;
    if (r == 0) {
        alike = calloc(l.n * co.n_prompts, sizeof(*alike));
        if (!alike)
            r = fail(&e, -ENOMEM, "out of memory for %zu prompts", co.n_prompts);
    }

    for (size_t i = 0; r == 0 && i < l.n; i++)
        sums[i].alike = alike + i * co.n_prompts;
    if (r == 0)
        r = continuation_run(en, l.items[0], l.items + 1, l.n - 1, text->tokens, &co, &p, sums, &e);
    progress_end(&p);
    if (r != 0)
        return command_fail("%s", e.text);

    return o->common.json ? report_json(eval_generate_result_json(en, o, &l, sums, &co))
                          : eval_generate_print_text(en, o, &l, sums, &co);
}
