/* See lab_eval.h. */
#include "lab/eval/lab_eval.h"

#include <stdio.h>
#include <stdlib.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_rotate.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/engine/engine.h"
#include "tools/eval/eval_quartiles.h"
#include "tools/eval/eval_subjects.h"
#include "tools/eval/evaluation.h"
#include "tools/eval/subject.h"

enum { BEFORE, AFTER, N_TABLES };

/* @ret_bytes: malloc'ed. */
static int eval_post_rope_solve(const char *table, const char *statistics, struct progress *p,
                                void **ret_bytes, size_t *ret_n_bytes, uint32_t *ret_sinks, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(stats_freep) struct stats *rotated = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct solve_options o;
    struct solve_report report;
    int r = stats_load(statistics, &s, e);

    if (r < 0)
        return r;

    r = table_load(table, &t, e);
    if (r < 0)
        return r;

    r = eval_solve_options(t, table, s, statistics, &o, e);
    if (r < 0)
        return r;

    r = stats_rotated(s, &rotated, e);
    if (r < 0)
        return r;

    *ret_sinks = t->n_sink;
    o.progress = progress_callback;
    o.progress_ctx = p;
    return solve_table(rotated, &o, ret_bytes, ret_n_bytes, &report, e);
}

static int eval_post_rope_open(struct engine *en, const struct eval_options *o, uint32_t n_sink,
                               const void *bytes, size_t n_bytes, struct subject **ret, struct errmsg *e)
{
    struct subject_options so = {
        .n_sink = o->n_sink == EVAL_SINKS_OF_TABLE ? n_sink : (uint32_t) o->n_sink,
        .n_recent = o->n_recent,
        .sides = o->sides,
        .first_layer = o->first_layer,
        .n_layers = o->n_layers,
    };
    int r = subject_table_new(en, o->tables[0], NULL, 0, &so, &ret[BEFORE], e);

    so.post_rope = true;
    return r < 0 ? r : subject_table_new(en, o->tables[0], bytes, n_bytes, &so, &ret[AFTER], e);
}

static int eval_post_rope_measure(struct engine *en, const struct eval_options *o,
                                  const struct document *text, struct evaluation *ret, struct errmsg *e)
{
    const struct evaluation_options eo = {.n_tokens = o->n_tokens, .window = o->window};
    _cleanup_(progress_end) struct progress p = {0};
    _cleanup_(freep) void *bytes = NULL;
    struct subject *s[N_TABLES] = {NULL};
    uint32_t n_sink = 0;
    size_t n_bytes = 0;
    int r;

    progress_start(&p, "solving for rotated keys", NULL, 1, o->common.quiet);
    r = eval_post_rope_solve(o->tables[0], lab_eval_of(o)->post_rope, &p, &bytes, &n_bytes, &n_sink, e);
    progress_end(&p);
    if (r == 0)
        r = eval_post_rope_open(en, o, n_sink, bytes, n_bytes, s, e);
    if (r == 0) {
        progress_start(&p, "evaluating", "tokens",
                       (1.0 + N_TABLES) * (double) evaluation_tokens(&eo, text->n_tokens), o->common.quiet);
        r = evaluation_run(en, s, N_TABLES, text->tokens, text->n_tokens, &eo, &p, ret, e);
    }

    for (int i = 0; i < N_TABLES; i++)
        (void) subject_free(s[i]);
    return r;
}

static json_t *eval_post_rope_json(const struct engine *en, const struct evaluation *v)
{
    return json_pack("{s:s, s:I, s:f, s:f, s:f, s:{s:f, s:f}}", "model", engine_info(en)->name, "tokens",
                     (json_int_t) v[BEFORE].n_tokens, "ppl_exact", evaluation_exact_perplexity(&v[BEFORE]),
                     "ppl", evaluation_perplexity(&v[BEFORE]), "kl", evaluation_kl(&v[BEFORE]), "post_rope",
                     "ppl", evaluation_perplexity(&v[AFTER]), "kl", evaluation_kl(&v[AFTER]));
}

static int eval_post_rope_print(const struct engine *en, const struct eval_options *o,
                                const struct evaluation *v)
{
    _cleanup_(report_freep) struct report *r = report_new("<\t>exact\t>before RoPE\t>after RoPE");

    printf("model   %s\ntext    %s\n\n", engine_info(en)->name, o->text);
    report_row(r, "perplexity\t%.3f\t%.3f\t%.3f", evaluation_exact_perplexity(&v[BEFORE]),
               evaluation_perplexity(&v[BEFORE]), evaluation_perplexity(&v[AFTER]));
    report_row(r, "KL, nats per token\t0\t%.5f\t%.5f", evaluation_kl(&v[BEFORE]), evaluation_kl(&v[AFTER]));
    report_print(r, stdout);
    return COMMAND_OK;
}

int eval_post_rope(struct engine *en, const struct eval_options *o, const struct document *text)
{
    struct evaluation v[N_TABLES];
    struct errmsg e = {""};
    int r = eval_post_rope_measure(en, o, text, v, &e);

    if (r < 0)
        return command_fail("%s", e.text);

    return o->common.json ? report_json(eval_post_rope_json(en, v)) : eval_post_rope_print(en, o, v);
}
