/*
 * kvcobra eval: perplexity and distance to the exact model of a table on a text, and what the cache weighs, byte for
 * byte.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table.h"
#include "alloc/table_account.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command.h"
#include "tools/engine/engine.h"
#include "tools/eval_post_rope.h"
#include "tools/eval_quartiles.h"
#include "tools/eval_report.h"
#include "tools/evaluation.h"
#include "tools/handles.h"
#include "tools/progress.h"
#include "tools/text_file.h"

enum { OPT_TABLE = 1, OPT_TEXT, OPT_TOKENS, OPT_WINDOW, OPT_RECENT, OPT_SINKS, OPT_SIDE, OPT_LAYERS, OPT_QUARTILES,
       OPT_POST_ROPE };

enum {
    DEFAULT_TOKENS = 8192,
    DEFAULT_WINDOW = 2048,
    SINKS_OF_TABLE = -1,
};

static const char doc[] =
    "Read a text with the exact model and with the compressed cache, and compare.\v"
    "The text is cut into windows that do not see each other. Printed are the perplexity of both and the mean, over "
    "all positions, of the Kullback-Leibler divergence between their next-token distributions (0 = the same model); "
    "then every byte held, by kind, and what it comes to per number.\n\n"
    "Without --recent, a query sees exactly what a decode step of the product would: the newest 64 to 127 tokens. "
    "--recent 0 is the hardest case: nothing but the first tokens is exact, not even the query's own position.\n\n"
    "--side and --layers read only a part of the cache from codes and leave the rest exact; --quartiles does that for "
    "each quarter of the layers, then for all of them. Bytes are always those of the whole cache.\n\n"
    "Bits per number: 'charged' is what the paper calls effective, codes without padding plus what each token stores "
    "beside them, which is nothing here; 'held' counts every byte.\n\n"
    "Examples, as strict as it gets, and with keys alone compressed:\n\n"
    "  kvcobra eval model.gguf --table model-2.table --text book.txt --recent 0\n"
    "  kvcobra eval model.gguf --table keys-1.table --text book.txt --recent 0 --side k";

static const struct argp_option options[] = {
    { "table", OPT_TABLE, "TABLE", 0, "The allocation table (required)", 1 },
    { "text", OPT_TEXT, "FILE", 0, "The text, plain UTF-8 (required)", 1 },
    { "tokens", OPT_TOKENS, "N", 0, "Tokens of the text to use (default 8192)", 2 },
    { "window", OPT_WINDOW, "N", 0, "Tokens of a window (default 2048)", 2 },
    { "recent", OPT_RECENT, "N", 0, "Newest tokens that a query sees exactly (default: as the product does)", 2 },
    { "sinks", OPT_SINKS, "N", 0, "First tokens that stay exact (default: what the table says)", 2 },
    { "side", OPT_SIDE, "SIDE", 0, "k, v or kv (default): what is read from codes", 3 },
    { "layers", OPT_LAYERS, "FIRST:LAST", 0, "Layers that are read from codes, from 0 (default: all)", 3 },
    { "quartiles", OPT_QUARTILES, "STATS", OPTION_ARG_OPTIONAL,
      "Each quarter of the layers alone, then all; with STATS, what the table was made of, also for the quarter's "
      "share of the harm that the solver counted", 3 },
    { "post-rope", OPT_POST_ROPE, "STATS", 0,
      "Beside it, what the same solve does to keys taken after RoPE; STATS is what the table was made of", 3 },
    { 0 },
};

static void take_side(struct eval_options *o, const char *name, const struct argp_state *state)
{
    for (uint32_t i = 1; i <= 3; i++)
        if (strcmp(name, eval_side_name(i)) == 0) {
            o->sides = i;
            return;
        }
    argp_error(state, "--side %s: k, v or kv", name);
}

/* "0:7" */
static void take_layers(struct eval_options *o, char *arg, const struct argp_state *state)
{
    char *colon = strchr(arg, ':');

    if (!colon)
        argp_error(state, "--layers %s: first and last, as in 0:7", arg);
    *colon = '\0';
    o->first_layer = (uint32_t) option_uint(state, "--layers", arg, 0, GEOMETRY_LAYERS_MAX - 1);
    o->n_layers = (uint32_t) option_uint(state, "--layers", colon + 1, o->first_layer, GEOMETRY_LAYERS_MAX - 1) + 1 -
                  o->first_layer;
}

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
    case OPT_SIDE:
        take_side(o, arg, state);
        return 0;
    case OPT_LAYERS:
        take_layers(o, arg, state);
        return 0;
    case OPT_QUARTILES:
        o->quartiles = true;
        o->quartile_statistics = arg;
        return 0;
    case OPT_POST_ROPE:
        o->post_rope = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (o->model)
            argp_error(state, "one model at a time");
        o->model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->model || !o->table || !o->text)
            argp_error(state, "a MODEL, a --table and a --text are needed");
        if (o->quartiles && o->n_layers > 0)
            argp_error(state, "--quartiles goes through all layers: without --layers");
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
    if (o->first_layer + o->n_layers > engine_geometry(en)->n_layers)
        return fail(e, -EINVAL, "%s has layers 0 to %u; --layers goes to %u", o->model,
                    engine_geometry(en)->n_layers - 1, o->first_layer + o->n_layers - 1);
    return 0;
}

static int account(const char *path, struct table_account *ret, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    int r = table_load(path, &t, e);

    if (r == 0)
        table_account(t, ret);
    return r;
}

/* One of several evaluations. */
struct part {
    uint32_t first_layer, n_layers; /* coded; n_layers 0: all */
    const void *post_rope;          /* a table for rotated keys; NULL: the table asked for */
    size_t post_rope_bytes;
};

/* One evaluation of @part; what does not depend on the part goes to *ret. */
static int measure(struct engine *en, const struct eval_options *o, const struct document *text, struct part part,
                   struct eval_result *ret, struct evaluation *ret_sum, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(progress_end) struct progress p;
    struct evaluation_options eo = { .n_tokens = o->n_tokens, .window = o->window };
    kvc_model *m; /* goes with the client */
    int r;

    progress_start(&p, "evaluating", "tokens", 0, o->common.quiet);
    r = client_open(NULL, &c, e);
    if (r == 0)
        r = part.post_rope ? model_open_bytes(c, en, part.post_rope, part.post_rope_bytes, &m, e)
                           : model_open(c, en, o->table, &m, e);
    if (r == 0)
        r = account(o->table, &ret->account, e);
    if (r < 0)
        return r;
    ret->table.struct_bytes = sizeof(ret->table);
    r = kvc_model_get_info(m, &ret->table);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    ret->n_sink = o->n_sink == SINKS_OF_TABLE ? ret->table.n_sink : (uint32_t) o->n_sink;
    ret->table.kernel = NULL; /* belongs to the client, which ends here */
    eo.eval = (kvc_eval_options) { .struct_bytes = sizeof(eo.eval),
                                   .n_sink = ret->n_sink,
                                   .n_recent = o->n_recent,
                                   .sides = o->sides,
                                   .first_layer = part.first_layer,
                                   .n_layers = part.n_layers,
                                   .post_rope = part.post_rope != NULL };
    p.total = 2.0 * (double) evaluation_tokens(&eo, text->n_tokens);
    return evaluate(en, c, m, text->tokens, text->n_tokens, &eo, &p, ret_sum, e);
}

static int measure_quartiles(struct engine *en, const struct eval_options *o, const struct document *text,
                             struct eval_result *ret, struct errmsg *e)
{
    uint32_t n = engine_geometry(en)->n_layers;
    int r = 0;

    if (n < EVAL_PARTS)
        return fail(e, -EINVAL, "%s has %u layers: too few for quartiles", o->model, n);
    if (o->quartile_statistics)
        r = quartile_harm(o->table, o->quartile_statistics, o->sides, ret->part_harm, e);
    for (uint32_t part = 0, first = 0; r == 0 && part < EVAL_PARTS; part++) {
        uint32_t end = (n * (part + 1) + EVAL_PARTS - 1) / EVAL_PARTS; /* as table_compare(): layer l is in 4 l / n */

        ret->part_layers[part] = end - first;
        r = measure(en, o, text, (struct part) { first, end - first, NULL, 0 }, ret, &ret->parts[part], e);
        first = end;
    }
    return r;
}

static int measure_post_rope(struct engine *en, const struct eval_options *o, const struct document *text,
                             struct eval_result *ret, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(progress_end) struct progress p;
    size_t n_bytes = 0;
    int r;

    progress_start(&p, "solving for rotated keys", NULL, 1, o->common.quiet);
    r = post_rope_table(o->table, o->post_rope, &p, &bytes, &n_bytes, e);
    progress_end(&p);
    if (r < 0)
        return r;
    return measure(en, o, text, (struct part) { o->first_layer, o->n_layers, bytes, n_bytes }, ret, &ret->post_rope, e);
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
    if (r == 0 && o.post_rope)
        r = measure_post_rope(en, &o, &text, &res, &e);
    if (r == 0 && o.quartiles)
        r = measure_quartiles(en, &o, &text, &res, &e);
    if (r == 0)
        r = measure(en, &o, &text, (struct part) { o.first_layer, o.n_layers, NULL, 0 }, &res, &res.sum, &e);
    if (r < 0)
        return command_fail("%s", e.text);
    (void) snprintf(res.model_name, sizeof(res.model_name), "%s", engine_info(en)->name);
    if (res.sum.n_tokens < o.n_tokens && text.n_tokens < o.n_tokens)
        command_note(&o.common, "%s has only %zu tokens; all of them were used", o.text, text.n_tokens);
    return eval_print(&o, &res);
}

const struct command cmd_eval = { "eval", "what a table costs: perplexity, distance to the exact model, bytes", run };
