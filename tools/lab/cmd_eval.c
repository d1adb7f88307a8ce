/*
 * kvcobra eval: perplexity and distance to the exact model of a table on a text, and what the cache weighs,
 * byte for byte.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/option.h"
#include "tools/engine/engine.h"
#include "tools/lab/comparators/comparator.h"
#include "tools/lab/eval_compare.h"
#include "tools/lab/eval_generate.h"
#include "tools/lab/eval_options.h"
#include "tools/lab/eval_report.h"
#include "tools/lab/eval_retrieval.h"
#include "tools/lab/eval_subjects.h"
#include "tools/lab/eval_table.h"

enum {
    OPT_TABLE = 1,
    OPT_TEXT,
    OPT_TOKENS,
    OPT_WINDOW,
    OPT_RECENT,
    OPT_SINKS,
    OPT_SIDE,
    OPT_LAYERS,
    OPT_QUARTILES,
    OPT_POST_ROPE,
    OPT_COMPARATOR,
    OPT_STATS,
    OPT_RETRIEVAL,
    OPT_GENERATE,
    OPT_SEED
};

/* Of reading a text, of generating (16 prompts), of the longest text that hides a key. */
enum {
    DEFAULT_TOKENS = 8192,
    DEFAULT_WINDOW = 2048,
    DEFAULT_PROMPTS_TOKENS = 4096,
    DEFAULT_PROMPT = 256,
    DEFAULT_RETRIEVAL_WINDOW = 3072
};
enum { KEYS_MAX = 100000, GENERATE_MAX = 1 << 20 };

static const char doc[] =
    "Read a text with the exact model and with the compressed cache, and compare.\v"
    "The text is cut into windows that do not see each other. Printed are the perplexity of both and the "
    "mean, over "
    "all positions, of the Kullback-Leibler divergence between their next-token distributions (0 = the same "
    "model); "
    "then every byte held, by kind, and what it comes to per number.\n\n"
    "Without --recent, a query sees exactly what a decode step of the product would: the newest 64 to 127 "
    "tokens. "
    "--recent 0 is the hardest case: nothing but the first tokens is exact, not even the query's own "
    "position.\n\n"
    "--side and --layers read only a part of the cache from codes and leave the rest exact; --quartiles does "
    "that for "
    "each quarter of the layers, then for all of them. Bytes of one table are always those of the whole "
    "cache.\n\n"
    "Bits per number: 'charged' is what the paper calls effective, codes without padding plus what each "
    "token stores "
    "beside them, which is nothing here; 'held' counts every byte.\n\n"
    "Several tables, and formats of others named with --comparator, are printed as rows, by bits. Formats: "
    "q8_0, q4_0, "
    "q4_0-rot (ggml); kivi-2, kivi-4; gear-2; quarot-3, quarot-4; turboquant-2, -3, -4; and, calibrated with "
    "--stats, "
    "kvquant-2, -3, -4; svdq-2; kqsvd-2, -3, -4. They are written from their papers and for this measurement "
    "alone.\n\n"
    "--retrieval hides five-digit keys in the text: four lengths up to --window, five depths, in turn. The "
    "exact model "
    "is asked too; shares have an interval of 95 % (Wilson). --generate writes on greedily after prompts cut "
    "from the "
    "text: how many tokens are as the exact model's, and the exact model's perplexity on all that was "
    "written.\n\n"
    "Examples: as strict as it gets; keys alone; against others; keys found again; texts written on:\n\n"
    "  kvcobra eval model.gguf --text book.txt --table 2.table --recent 0\n"
    "  kvcobra eval model.gguf --text book.txt --table k-1.table --recent 0 --side k\n"
    "  kvcobra eval model.gguf --text book.txt --table 3.table --comparator q4_0,kivi-2\n"
    "  kvcobra eval model.gguf --text book.txt --table 3.table --retrieval 100\n"
    "  kvcobra eval model.gguf --text book.txt --table 3.table --generate 256";

static const struct argp_option options[] = {
    {"table", OPT_TABLE, "TABLE", 0, "An allocation table; several are compared", 1},
    {"comparator", OPT_COMPARATOR, "NAME,...", 0, "Other formats beside the tables; 'all' for all of them",
     1},
    {"stats", OPT_STATS, "STATS", 0, "What calibrated formats are made from: kvquant, svdq, kqsvd", 1},
    {"text", OPT_TEXT, "FILE", 0, "The text, plain UTF-8 (required)", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens of the text to use (default 8192; of all prompts 4096)", 2},
    {"window", OPT_WINDOW, "N", 0,
     "Tokens of a window (default 2048), of a prompt (256), of the longest text that hides a key (3072)", 2},
    {"recent", OPT_RECENT, "N", 0, "Newest tokens that a query sees exactly (default: as the product does)",
     2},
    {"sinks", OPT_SINKS, "N", 0, "First tokens that stay exact (default: what the table says)", 2},
    {"side", OPT_SIDE, "SIDE", 0, "k, v or kv (default): what is read from codes", 3},
    {"layers", OPT_LAYERS, "FIRST:LAST", 0, "Layers that are read from codes, from 0 (default: all)", 3},
    {"quartiles", OPT_QUARTILES, "STATS", OPTION_ARG_OPTIONAL,
     "Each quarter of the layers alone, then all; with STATS, what the table was made of, also for the "
     "quarter's "
     "share of the harm that the solver counted",
     3},
    {"post-rope", OPT_POST_ROPE, "STATS", 0,
     "Beside it, what the same solve does to keys taken after RoPE; STATS is what the table was made of", 3},
    {"retrieval", OPT_RETRIEVAL, "N", 0, "Instead: how many of N keys hidden in the text are found again", 4},
    {"seed", OPT_SEED, "N", 0, "Of the keys, and of where texts begin (default 0)", 4},
    {"generate", OPT_GENERATE, "N", 0,
     "Instead: write N tokens after each prompt, and compare with what the exact model writes", 4},
    {0},
};

static void cmd_eval_take_side(struct eval_options *o, const char *name, const struct argp_state *state)
{
    for (uint32_t i = 1; i <= 3; i++)
        if (strcmp(name, eval_side_name(i)) == 0) {
            o->sides = i;
            return;
        }
    argp_error(state, "--side %s: k, v or kv", name);
}

/* "0:7" */
static void cmd_eval_take_layers(struct eval_options *o, char *arg, const struct argp_state *state)
{
    char *colon = strchr(arg, ':');

    if (!colon)
        argp_error(state, "--layers %s: first and last, as in 0:7", arg);
    *colon = '\0';
    o->first_layer = (uint32_t) option_uint(state, "--layers", arg, 0, GEOMETRY_LAYERS_MAX - 1);
    o->n_layers =
        (uint32_t) option_uint(state, "--layers", colon + 1, o->first_layer, GEOMETRY_LAYERS_MAX - 1) + 1 -
        o->first_layer;
}

/* "q4_0,kivi-2", "all" */
static void cmd_eval_take_comparators(struct eval_options *o, char *arg, const struct argp_state *state)
{
    char *rest = arg;

    for (const char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
        bool all = strcmp(name, "all") == 0;

        if (!all && !comparator_find(name))
            argp_error(state, "--comparator %s: not known; kvcobra eval --help lists them", name);
        for (size_t i = 0; comparators[i]; i++) {
            if (!all && comparators[i] != comparator_find(name))
                continue;
            if (o->n_comparators == EVAL_COMPARATORS_MAX)
                argp_error(state, "at most %d formats at a time", EVAL_COMPARATORS_MAX);
            o->comparators[o->n_comparators++] = comparators[i];
        }
    }
}

/* What the three measurements exclude. */
static void cmd_eval_check_measurement(const struct eval_options *o, const struct argp_state *state)
{
    bool other = o->n_keys > 0 || o->n_generated > 0;

    if (o->n_keys > 0 && o->n_generated > 0)
        argp_error(state, "--retrieval and --generate are two measurements: one at a time");
    if (o->n_keys > 0 && o->n_tokens > 0)
        argp_error(state, "--retrieval cuts its texts by --window; --tokens has no meaning there");
    if (o->n_keys == 0 && o->seed_given)
        argp_error(state, "--seed is of the keys of --retrieval");
    if (o->quartiles && o->n_layers > 0)
        argp_error(state, "--quartiles goes through all layers: without --layers");
    if ((o->quartiles || o->post_rope) && (o->n_tables != 1 || o->n_comparators > 0 || other))
        argp_error(state,
                   "--quartiles and --post-rope look at one --table on a text, with nothing beside it");
}

static void cmd_eval_check_arguments(struct eval_options *o, const struct argp_state *state)
{
    bool calibrated = false;

    if (!o->model || !o->text || o->n_tables + o->n_comparators == 0)
        argp_error(state, "a MODEL, a --text and a --table or a --comparator are needed");
    cmd_eval_check_measurement(o, state);
    for (size_t i = 0; i < o->n_comparators; i++)
        calibrated = calibrated || o->comparators[i]->calibrated;
    if (calibrated && !o->stats)
        argp_error(state, "kvquant, svdq and kqsvd are calibrated: --stats says on what");
    if (!calibrated && o->stats)
        argp_error(state, "--stats is for kvquant, svdq and kqsvd");
    if (o->n_tokens == 0)
        o->n_tokens = o->n_keys > 0 ? 0 : o->n_generated > 0 ? DEFAULT_PROMPTS_TOKENS : DEFAULT_TOKENS;
    if (o->window == 0)
        o->window = o->n_keys > 0        ? DEFAULT_RETRIEVAL_WINDOW
                    : o->n_generated > 0 ? DEFAULT_PROMPT
                                         : DEFAULT_WINDOW;
}

static error_t cmd_eval_parse(int key, char *arg, struct argp_state *state)
{
    struct eval_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_TABLE:
        if (o->n_tables == EVAL_TABLES_MAX)
            argp_error(state, "at most %d tables at a time", EVAL_TABLES_MAX);
        o->tables[o->n_tables++] = arg;
        return 0;
    case OPT_COMPARATOR:
        cmd_eval_take_comparators(o, arg, state);
        return 0;
    case OPT_STATS:
        o->stats = arg;
        return 0;
    case OPT_RETRIEVAL:
        o->n_keys = option_uint(state, "--retrieval", arg, 1, KEYS_MAX);
        return 0;
    case OPT_GENERATE:
        o->n_generated = option_uint(state, "--generate", arg, 1, GENERATE_MAX);
        return 0;
    case OPT_SEED:
        o->seed = option_uint(state, "--seed", arg, 0, UINT64_MAX);
        o->seed_given = true;
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
        cmd_eval_take_side(o, arg, state);
        return 0;
    case OPT_LAYERS:
        cmd_eval_take_layers(o, arg, state);
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
        cmd_eval_check_arguments(o, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_eval_parse, "MODEL", doc, common_children, NULL, NULL};

/* What the options ask of the model. */
static int cmd_eval_check_model(const struct engine *en, const struct eval_options *o, struct errmsg *e)
{
    char what[48];

    if (o->first_layer + o->n_layers > engine_geometry(en)->n_layers)
        return fail(e, -EINVAL, "%s has layers 0 to %u; --layers goes to %u", o->model,
                    engine_geometry(en)->n_layers - 1, o->first_layer + o->n_layers - 1);

    (void) snprintf(what, sizeof(what), "--window %zu", o->window);
    return eval_check_length(en, o, o->window, what, e);
}

static int cmd_eval_run(int argc, char **argv)
{
    struct eval_options o = {.n_recent = -1, .n_sink = EVAL_SINKS_OF_TABLE};
    const struct engine_options eo = {0};
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(document_deinit) struct document text = {0};
    struct errmsg e = {""};
    int r;

    command_parse(&argp, argc, argv, &o);
    r = engine_open(o.model, &eo, &en, &e);
    if (r == 0)
        r = cmd_eval_check_model(en, &o, &e);
    if (r == 0)
        r = document_load(en, o.text, &text, &e);
    if (r < 0)
        return command_fail("%s", e.text);
    if (text.n_tokens < o.n_tokens && o.n_generated == 0)
        command_note(&o.common, "%s has only %zu tokens; all of them are used", o.text, text.n_tokens);
    if (o.n_keys > 0)
        return eval_retrieval(en, &o, &text);
    if (o.n_generated > 0)
        return eval_generate(en, &o, &text);

    return o.n_tables == 1 && o.n_comparators == 0 ? eval_table(en, &o, &text) : eval_compare(en, &o, &text);
}

const struct command cmd_eval = {"eval", "what a table costs: distance to the exact model, bytes",
                                 cmd_eval_run};
