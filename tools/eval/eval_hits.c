/*
 * See eval_measure.h. A hit needs no daemon here: a fork of the cold run's sequence that is cut to whole
 * chunks has the pages of these chunks and nothing else, as a sequence after a match has.
 */
#include "tools/eval/eval_measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/client_model.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/eval/eval_options.h"

enum {
    LOGIT_ROWS = 64, /* held at a time: 12 MiB for a vocabulary of 49152 */
    KINDS = 3,
    HITS = 2 /* of half of the published tokens, and of all */
};

/* How both runs compute. The product of a matrix and 64 tokens need not have the bits of one with 512: with
 * pieces of chunks all tokens are computed in the same pieces in both runs. */
static const struct {
    const char *name;
    uint32_t flags;
    size_t piece; /* tokens computed at once */
} eval_hits_kinds[KINDS] = {
    {"default", 0, 512},
    {"repeatable", KVC_SEQ_REPEATABLE, 512},
    {"repeatable, by chunks", KVC_SEQ_REPEATABLE, KVC_CHUNK_TOKENS},
};

struct eval_hits_row {
    size_t n_found;         /* tokens of the hit, in each window */
    size_t n_compared;      /* positions, over all windows */
    size_t n_same;          /* of them: both runs choose the same next token */
    double kl_sum, kl_most; /* KL(cold || hit), nats */
};

struct eval_hits_run {
    struct engine *en;
    kvc_client *client;
    uint32_t *tokens; /* [window] */
    size_t window;
    float *hidden[2]; /* [window, n_embd] cold, hit */
    float *logits[2]; /* [LOGIT_ROWS, n_vocab] */
    struct progress *p;
    double done;
    struct eval_hits_row rows[KINDS][HITS];
};

static void eval_hits_run_deinit(struct eval_hits_run *x)
{
    for (int i = 0; i < 2; i++) {
        free(x->hidden[i]);
        free(x->logits[i]);
    }
    free(x->tokens);
}

static float *eval_hits_floats(size_t rows, size_t columns)
{
    size_t bytes;

    return checked_mul3(rows, columns, sizeof(float), &bytes) ? malloc(bytes) : NULL;
}

static int eval_hits_run_init(struct eval_hits_run *x, struct errmsg *e)
{
    const struct engine_info *info = engine_info(x->en);

    x->tokens = calloc(x->window, sizeof(*x->tokens));
    for (int i = 0; i < 2; i++) {
        x->hidden[i] = eval_hits_floats(x->window, info->n_embd);
        x->logits[i] = eval_hits_floats(LOGIT_ROWS, info->n_vocab);
    }
    if (!x->tokens || !x->hidden[0] || !x->hidden[1] || !x->logits[0] || !x->logits[1])
        return fail(e, -ENOMEM, "out of memory for windows of %zu tokens", x->window);

    return 0;
}

/* Runs the tokens of the window that @s lacks, in pieces, each packed before the next. */
static int eval_hits_read(struct eval_hits_run *x, kvc_seq *s, size_t piece, float *hidden, struct errmsg *e)
{
    size_t n_embd = engine_info(x->en)->n_embd;
    uint32_t n_layers = engine_geometry(x->en)->n_layers;
    struct kv_cache cache = kvcobra_cache_ops(x->client, s);

    for (size_t at = kvc_seq_length(s), n; at < x->window; at += n) {
        float *rows = hidden + at * n_embd;
        int r;

        n = x->window - at < piece ? x->window - at : piece;
        r = engine_embed(x->en, x->tokens + at, n, rows, e);
        if (r == 0)
            r = engine_layers(x->en, &cache, 0, n_layers, n, rows, e);
        if (r < 0)
            return r;

        r = kvc_seq_commit(s, x->tokens, at + n, NULL);
        if (r < 0)
            return fail(e, r, "%s", kvc_last_error(x->client));

        x->done += (double) n;
        progress_update(x->p, x->done);
    }

    return 0;
}

static int eval_hits_compare(struct eval_hits_run *x, struct eval_hits_row *row, struct errmsg *e)
{
    const struct engine_info *info = engine_info(x->en);

    for (size_t at = row->n_found, n; at < x->window; at += n) {
        int r = 0;

        n = x->window - at < LOGIT_ROWS ? x->window - at : LOGIT_ROWS;
        for (int i = 0; r == 0 && i < 2; i++)
            r = engine_logits(x->en, n, x->hidden[i] + at * info->n_embd, x->logits[i], e);
        if (r < 0)
            return r;

        for (size_t t = 0; t < n; t++) {
            const float *cold = x->logits[0] + t * info->n_vocab, *hit = x->logits[1] + t * info->n_vocab;
            double kl = sampler_kl(cold, hit, info->n_vocab);

            row->kl_sum += kl;
            row->kl_most = kl > row->kl_most ? kl : row->kl_most;
            row->n_same += sampler_greedy(cold, info->n_vocab) == sampler_greedy(hit, info->n_vocab);
        }
        row->n_compared += n;
    }

    return 0;
}

static int eval_hits_run_hit(struct eval_hits_run *x, kvc_seq *cold, size_t piece, struct eval_hits_row *row,
                             struct errmsg *e)
{
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL;
    size_t kept;
    int r = kvc_seq_fork(cold, &s);

    if (r == 0)
        r = kvc_seq_truncate(s, row->n_found, &kept);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(x->client));

    r = eval_hits_read(x, s, piece, x->hidden[1], e);
    return r < 0 ? r : eval_hits_compare(x, row, e);
}

static int eval_hits_run_kind(struct eval_hits_run *x, kvc_model *m, unsigned kind, struct errmsg *e)
{
    _cleanup_(kvc_seq_freep) kvc_seq *cold = NULL;
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = eval_hits_kinds[kind].flags};
    size_t piece = eval_hits_kinds[kind].piece;
    int r = kvc_seq_new_with(m, &o, &cold);

    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(x->client));

    r = eval_hits_read(x, cold, piece, x->hidden[0], e);
    for (unsigned i = 0; r == 0 && i < HITS; i++)
        r = eval_hits_run_hit(x, cold, piece, &x->rows[kind][i], e);
    return r;
}

static int eval_hits_run_windows(struct eval_hits_run *x, const char *table, const struct document *text,
                                 size_t n_windows, struct errmsg *e)
{
    const struct engine_info *info = engine_info(x->en);
    size_t bos = info->add_bos && info->token_bos < info->n_vocab;
    kvc_model *m;
    int r = model_open(x->client, x->en, table, &m, e);

    for (size_t w = 0; r == 0 && w < n_windows; w++) {
        if (bos) /* in place of the window's last token */
            x->tokens[0] = info->token_bos;
        memcpy(x->tokens + bos, text->tokens + w * x->window, (x->window - bos) * sizeof(*x->tokens));
        for (unsigned i = 0; r == 0 && i < KINDS; i++)
            r = eval_hits_run_kind(x, m, i, e);
    }

    return r;
}

/* ---- printing ---- */

static int eval_hits_print(const struct eval_hits_run *x, size_t n_windows)
{
    _cleanup_(report_freep) struct report *t =
        report_new("<attention\t>found\t>compared\t>mean KL\t>largest KL\t>same next");

    printf("KL of a run that finds tokens to a cold run, nats per token; %zu windows of %zu\n\n", n_windows,
           x->window);
    for (unsigned i = 0; i < KINDS; i++)
        for (unsigned k = 0; k < HITS; k++) {
            const struct eval_hits_row *r = &x->rows[i][k];

            report_row(t, "%s\t%zu\t%zu\t%.2e\t%.2e\t%.2f %%", eval_hits_kinds[i].name, r->n_found,
                       r->n_compared, r->kl_sum / (double) r->n_compared, r->kl_most,
                       100.0 * (double) r->n_same / (double) r->n_compared);
        }
    report_print(t, stdout);
    return COMMAND_OK;
}

static int eval_hits_print_json(const struct eval_hits_run *x, size_t n_windows)
{
    json_t *rows = json_array();

    for (unsigned i = 0; i < KINDS; i++)
        for (unsigned k = 0; k < HITS; k++) {
            const struct eval_hits_row *r = &x->rows[i][k];

            (void) json_array_append_new(/* on failure rows is incomplete, and the length is checked below */
                                         rows,
                                         json_pack("{s:s, s:I, s:I, s:f, s:f, s:I}", "attention",
                                                   eval_hits_kinds[i].name, "found", (json_int_t) r->n_found,
                                                   "compared", (json_int_t) r->n_compared, "kl",
                                                   r->kl_sum / (double) r->n_compared, "kl_largest",
                                                   r->kl_most, "same_next", (json_int_t) r->n_same));
        }
    if (json_array_size(rows) != (size_t) KINDS * HITS) {
        json_decref(rows);
        return report_json(NULL);
    }

    return report_json(json_pack("{s:I, s:I, s:o}", "windows", (json_int_t) n_windows, "window",
                                 (json_int_t) x->window, "rows", rows));
}

int eval_hits(struct engine *en, const struct eval_options *o, const struct document *text)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(eval_hits_run_deinit) struct eval_hits_run x = {.en = en, .window = o->window};
    _cleanup_(progress_end) struct progress p = {0};
    size_t n_tokens = text->n_tokens < o->n_tokens ? text->n_tokens : o->n_tokens;
    size_t n_windows = n_tokens / o->window, n_all = o->window / KVC_CHUNK_TOKENS - 1;
    struct errmsg e = {""};
    int r;

    if (n_windows == 0)
        return command_fail("%s has fewer than %zu tokens: give a shorter --window", o->text, o->window);

    for (unsigned i = 0; i < KINDS; i++) {
        x.rows[i][0].n_found = n_all / 2 * KVC_CHUNK_TOKENS;
        x.rows[i][1].n_found = n_all * KVC_CHUNK_TOKENS;
    }
    progress_start(&p, "comparing", "tokens",
                   KINDS * (double) n_windows *
                       (double) (3 * o->window - x.rows[0][0].n_found - x.rows[0][1].n_found),
                   o->common.quiet);
    x.p = &p;
    r = client_open(NULL, &c, &e);
    x.client = c;
    if (r == 0)
        r = eval_hits_run_init(&x, &e);
    if (r == 0)
        r = eval_hits_run_windows(&x, o->tables[0], text, n_windows, &e);
    progress_end(&p);
    if (r < 0)
        return command_fail("%s", e.text);

    return o->common.json ? eval_hits_print_json(&x, n_windows) : eval_hits_print(&x, n_windows);
}
