/*
 * kvcobra eval: perplexity and distance to the exact model of a table on a text, and what the cache weighs, byte for
 * byte.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command.h"
#include "tools/engine/engine.h"
#include "tools/evaluation.h"
#include "tools/handles.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/text_file.h"

enum { OPT_TABLE = 1, OPT_TEXT, OPT_TOKENS, OPT_WINDOW, OPT_RECENT, OPT_SINKS };

enum {
    DEFAULT_TOKENS = 8192,
    DEFAULT_WINDOW = 2048,
    SINKS_OF_TABLE = -1,
};

struct eval_options {
    struct common_options common;
    const char *model, *table, *text;
    size_t n_tokens, window;
    int32_t n_recent, n_sink;
};

/* What is known at the end and printed. */
struct eval_result {
    struct evaluation sum;
    kvc_model_info table;
    char model_name[128];
    uint32_t n_sink;
};

static const char doc[] =
    "Read a text with the exact model and with the compressed cache, and compare.\v"
    "The text is cut into windows that do not see each other. Printed are the perplexity of both and the mean, over "
    "all positions, of the Kullback-Leibler divergence between their next-token distributions (0 = the same model); "
    "then every byte held, by kind, and what it comes to per number.\n\n"
    "Without --recent, a query sees exactly what a decode step of the product would: the newest 64 to 127 tokens. "
    "--recent 0 is the hardest case: nothing but the first tokens is exact, not even the query's own position.\n\n"
    "Example, as strict as it gets:\n\n"
    "  kvcobra eval model.gguf --table model-2.table --text book.txt --recent 0";

static const struct argp_option options[] = {
    { "table", OPT_TABLE, "TABLE", 0, "The allocation table (required)", 1 },
    { "text", OPT_TEXT, "FILE", 0, "The text, plain UTF-8 (required)", 1 },
    { "tokens", OPT_TOKENS, "N", 0, "Tokens of the text to use (default 8192)", 2 },
    { "window", OPT_WINDOW, "N", 0, "Tokens of a window (default 2048)", 2 },
    { "recent", OPT_RECENT, "N", 0, "Newest tokens that a query sees exactly (default: as the product does)", 2 },
    { "sinks", OPT_SINKS, "N", 0, "First tokens that stay exact (default: what the table says)", 2 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct eval_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_TABLE:
        o->table = arg;
        return 0;
    case OPT_TEXT:
        o->text = arg;
        return 0;
    case OPT_TOKENS:
        o->n_tokens = option_uint(state, "--tokens", arg, 2, (uint64_t) 1 << 32);
        return 0;
    case OPT_WINDOW:
        o->window = option_uint(state, "--window", arg, 2, (uint64_t) 1 << 24);
        return 0;
    case OPT_RECENT:
        o->n_recent = (int32_t) option_uint(state, "--recent", arg, 0, INT32_MAX);
        return 0;
    case OPT_SINKS:
        o->n_sink = (int32_t) option_uint(state, "--sinks", arg, 0, TABLE_SINKS_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (o->model)
            argp_error(state, "one model at a time");
        o->model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->model || !o->table || !o->text)
            argp_error(state, "a MODEL, a --table and a --text are needed");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = { options, parse, "MODEL", doc, common_children, NULL, NULL };

static int check_window(const struct engine *en, const struct eval_options *o, struct errmsg *e)
{
    const struct engine_info *info = engine_info(en);
    uint32_t limit = info->window_tokens && info->window_tokens < info->n_context ? info->window_tokens
                                                                                  : info->n_context;

    if (o->window > limit)
        return fail(e, -EINVAL, "%s reads %u tokens at most; --window %zu is more", o->model, limit, o->window);
    return 0;
}

static int measure(struct engine *en, const struct eval_options *o, const struct document *text,
                   struct eval_result *ret, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(progress_end) struct progress p;
    struct evaluation_options eo = { .n_tokens = o->n_tokens, .window = o->window };
    kvc_model *m; /* goes with the client */
    int r;

    progress_start(&p, "evaluating", "tokens", 0, o->common.quiet);
    r = client_open(NULL, &c, e);
    if (r == 0)
        r = model_open(c, en, o->table, &m, e);
    if (r < 0)
        return r;
    ret->table.struct_bytes = sizeof(ret->table);
    r = kvc_model_get_info(m, &ret->table);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    ret->n_sink = o->n_sink == SINKS_OF_TABLE ? ret->table.n_sink : (uint32_t) o->n_sink;
    ret->table.kernel = NULL; /* belongs to the client, which ends here */
    eo.eval = (kvc_eval_options) { .struct_bytes = sizeof(eo.eval), .n_sink = ret->n_sink, .n_recent = o->n_recent };
    p.total = 2.0 * (double) evaluation_tokens(&eo, text->n_tokens);
    return evaluate(en, c, m, text->tokens, text->n_tokens, &eo, &p, &ret->sum, e);
}

/* What a cache is made of; together they are every byte held. */
enum { N_ITEMS = 5 };
struct item {
    const char *name;
    uint64_t bytes;
};

static void list_items(const kvc_usage *u, struct item ret[static N_ITEMS])
{
    const struct item items[N_ITEMS] = {
        { "codes", u->code_bytes }, { "padding", u->padding_bytes }, { "headers", u->header_bytes },
        { "sinks", u->sink_bytes }, { "tail", u->tail_bytes },
    };

    memcpy(ret, items, sizeof(items));
}

static double per_number(const kvc_usage *u, uint64_t bytes)
{
    return u->numbers ? 8.0 * (double) bytes / (double) u->numbers : 0;
}

static double perplexity(double nll, uint64_t n)
{
    return exp(nll / (double) n);
}

/* {"codes": {"bytes": ..., "bpd": ...}, ...}: the difference between bpd_code and bpd_true */
static json_t *items_json(const kvc_usage *u)
{
    struct item items[N_ITEMS];
    json_t *all = json_object();

    list_items(u, items);
    for (size_t i = 0; i < N_ITEMS; i++) {
        json_t *one = json_pack("{s:I, s:f}", "bytes", (json_int_t) items[i].bytes, "bpd",
                                per_number(u, items[i].bytes));

        if (json_object_set_new(all, items[i].name, one) < 0) { /* takes NULLs, drops @one on failure */
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *result_json(const struct eval_options *o, const struct eval_result *res)
{
    const struct evaluation *s = &res->sum;
    char digest[DIGEST_HEX_BYTES];
    json_t *json;

    json = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:i}", "model", res->model_name, "table",
                     digest_hex(res->table.table_digest, digest), "tokens", (json_int_t) s->n_tokens, "windows",
                     (json_int_t) s->n_windows, "window", (json_int_t) o->window, "last_window",
                     (json_int_t) s->last_window, "recent", (int) o->n_recent, "sinks", (int) res->n_sink);
    if (!json)
        return NULL;
    if (json_object_update_new(json, json_pack("{s:f, s:f, s:f, s:f, s:f}", "ppl_exact",
                                               perplexity(s->nll_exact, s->n_predictions), "ppl",
                                               perplexity(s->nll, s->n_predictions), "kl",
                                               s->kl / (double) s->n_tokens, "nll_exact", s->nll_exact, "nll",
                                               s->nll)) < 0 ||
        json_object_update_new(json, json_pack("{s:f, s:f, s:I, s:I, s:o}", "bpd_code", res->table.bpd_code,
                                               "bpd_true", per_number(&s->usage, usage_bytes(&s->usage)), "bytes",
                                               (json_int_t) usage_bytes(&s->usage), "numbers",
                                               (json_int_t) s->usage.numbers, "items", items_json(&s->usage))) < 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static int print_bytes(const kvc_usage *u)
{
    _cleanup_(report_freep) struct report *r = report_new("<held\t>bytes\t>bits per number");
    struct item items[N_ITEMS];

    list_items(u, items);
    for (size_t i = 0; i < N_ITEMS; i++)
        report_row(r, "%s\t%ju\t%.3f", items[i].name, (uintmax_t) items[i].bytes, per_number(u, items[i].bytes));
    report_row(r, "all\t%ju\t%.3f", (uintmax_t) usage_bytes(u), per_number(u, usage_bytes(u)));
    report_row(r, "binary16\t%ju\t16.000", (uintmax_t) u->numbers * 2);
    return report_print(r, stdout);
}

static int print_text(const struct eval_options *o, const struct eval_result *res)
{
    _cleanup_(report_freep) struct report *r = report_new("<\t>exact\t>compressed");
    const struct evaluation *s = &res->sum;
    char digest[DIGEST_HEX_BYTES];

    printf("model   %s\n", res->model_name);
    printf("table   %s, %.3f bits per number\n", digest_short(res->table.table_digest, digest), res->table.bpd_code);
    printf("text    %s: %ju tokens in %ju windows of %zu", o->text, (uintmax_t) s->n_tokens,
           (uintmax_t) s->n_windows, o->window);
    if (s->last_window < o->window)
        printf(", the last one of %zu", s->last_window);
    if (o->n_recent < 0)
        printf("\nexact   the first %u tokens, and the newest 64 to 127\n\n", res->n_sink);
    else
        printf("\nexact   the first %u tokens, and the newest %d\n\n", res->n_sink, o->n_recent);
    report_row(r, "perplexity\t%.3f\t%.3f", perplexity(s->nll_exact, s->n_predictions),
               perplexity(s->nll, s->n_predictions));
    report_row(r, "KL, nats per token\t0\t%.5f", s->kl / (double) s->n_tokens);
    if (report_print(r, stdout) < 0)
        return command_fail("out of memory");
    putchar('\n');
    if (print_bytes(&s->usage) < 0)
        return command_fail("out of memory");
    return COMMAND_OK;
}

static int run(int argc, char **argv)
{
    struct eval_options o = {
        .n_tokens = DEFAULT_TOKENS,
        .window = DEFAULT_WINDOW,
        .n_recent = -1,
        .n_sink = SINKS_OF_TABLE,
    };
    const struct engine_options eo = { 0 };
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(document_deinit) struct document text = { 0 };
    struct eval_result res = { 0 };
    struct errmsg e = { "" };
    int r;

    command_parse(&argp, argc, argv, &o);
    r = engine_open(o.model, &eo, &en, &e);
    if (r == 0)
        r = check_window(en, &o, &e);
    if (r == 0)
        r = document_load(en, o.text, &text, &e);
    if (r == 0)
        r = measure(en, &o, &text, &res, &e);
    if (r < 0)
        return command_fail("%s", e.text);
    (void) snprintf(res.model_name, sizeof(res.model_name), "%s", engine_info(en)->name);
    if (res.sum.n_tokens < o.n_tokens && text.n_tokens < o.n_tokens)
        command_note(&o.common, "%s has only %zu tokens; all of them were used", o.text, text.n_tokens);
    return o.common.json ? report_json(result_json(&o, &res)) : print_text(&o, &res);
}

const struct command cmd_eval = { "eval", "what a table costs: perplexity, distance to the exact model, bytes", run };
