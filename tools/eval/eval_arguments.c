/* The command line of `kvcobra eval`. See eval_options.h. */
#include "tools/eval/eval_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "tools/command/option.h"
#include "tools/eval/eval_extension.h"
#include "tools/eval/eval_report.h"

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
    OPT_GENERATE,
    OPT_HITS,
    OPT_BUDGETS
};

/* Defaults of reading a text, of --generate (16 prompts), and of --hits. */
enum {
    DEFAULT_TOKENS = 8192,
    DEFAULT_WINDOW = 2048,
    DEFAULT_PROMPTS_TOKENS = 4096,
    DEFAULT_PROMPT = 256,
    DEFAULT_HITS_WINDOW = 1500,
    HITS_WINDOW_MIN = 192 /* two chunks to find, and newer tokens */
};
enum { GENERATE_MAX = 1 << 20 };

static const char doc[] =
    "Read a text with the exact model and with compressed caches, and compare them.\vThe text is cut into "
    "windows; no window sees another. The report has the perplexity of both models and the mean "
    "Kullback-Leibler divergence (KL) of their next-token distributions over all positions, 0 for identical "
    "models; then all bytes of the cache by kind, and their bits per number.\n\n"
    "By default a query sees the newest 64 to 127 tokens exactly, as in a decode step of the product. "
    "--recent 0 is the hardest case: only the first tokens are exact, not even the query's own position.\n\n"
    "--side and --layers compress a part of the cache and leave the rest exact; --quartiles does that for "
    "each quarter of the layers, then for all. The bytes of one table are always those of the whole "
    "cache.\n\n"
    "Bits per number: 'charged' is what the paper calls effective, codes without padding plus the data "
    "stored with each token, of which tables have none; 'held' or 'true' counts all bytes.\n\n"
    "Several tables are printed as rows, by bits. kvcobra-lab eval also measures other formats, and "
    "asks for keys and answers.\n\n"
    "Several texts are printed one by one with a 95 % interval over their windows, then their mean and the "
    "worst one, and how much each further table's KL differs from the first one's over the same windows; "
    "several numbers of --recent are columns, since other formats are published with a recent "
    "window of 128 exact tokens. --budgets compares the bits that the tables give to each head, and prints "
    "the KL beside them: tables with nearly the same bits may differ much in KL.\n\n"
    "--generate continues prompts from the text "
    "greedily and reports how many tokens agree with the exact model's, the exact model's perplexity on the "
    "generated text, and the KL along the exact model's text.\n\n"
    "--hits compares a run whose first tokens are found in shared pages with a run that computes all "
    "tokens. By default both differ by the error of the codes, because the cold run reads the keys of its "
    "own piece exactly. With repeatable attention only the engine's rounding differs, which can flip codes "
    "of later chunks; if both runs also compute chunk by chunk, as in kvcobra generate --repeatable, "
    "nothing differs.\n\n"
    "Examples: the hardest case; keys alone; several texts; generation; hits:\n\n"
    "  kvcobra eval model.gguf --text book.txt --table 2.table --recent 0\n"
    "  kvcobra eval model.gguf --text book.txt --table k-1.table --side k\n"
    "  kvcobra eval model.gguf --text a --text b --table 3.table --recent 0,128\n"
    "  kvcobra eval model.gguf --text book.txt --table 3.table --generate 256\n"
    "  kvcobra eval model.gguf --text book.txt --table 3.table --hits";

static const struct argp_option options[] = {
    {"table", OPT_TABLE, "TABLE", 0, "An allocation table; may be repeated", 1},
    {"text", OPT_TEXT, "FILE", 0, "The text, UTF-8 (required); may be repeated", 1},
    {"tokens", OPT_TOKENS, "N", 0,
     "Tokens of each text to use (default 8192; with --generate 4096, with --hits one window)", 2},
    {"window", OPT_WINDOW, "N", 0,
     "Tokens of a window (default 2048); with --generate, of a prompt (default 256); with --hits, of a "
     "prompt (default 1500)",
     2},
    {"recent", OPT_RECENT, "N,...", 0,
     "Newest tokens that a query sees exactly (default: as in the product); several numbers: columns for "
     "each",
     2},
    {"sinks", OPT_SINKS, "N", 0, "First tokens that stay exact (default: as the table has)", 2},
    {"side", OPT_SIDE, "k|v|kv", 0, "Compressed side (default kv)", 3},
    {"layers", OPT_LAYERS, "FIRST:LAST", 0, "Compressed layers, from 0 (default: all)", 3},
    {"quartiles", OPT_QUARTILES, "STATS", OPTION_ARG_OPTIONAL,
     "Compress each quarter of the layers alone, then all; with STATS, the statistics that the table was "
     "solved from, also print the quarter's share of the distortion",
     3},
    {"budgets", OPT_BUDGETS, NULL, 0,
     "Also compare the bits of the heads in each table with those in the first table", 3},
    {"generate", OPT_GENERATE, "N", 0,
     "Instead: generate N tokens after each prompt, and compare with the exact model's", 4},
    {"hits", OPT_HITS, NULL, 0, "Instead: compare runs that find their first tokens with cold runs", 4},
    {0},
};

static void eval_arguments_take_side(struct eval_options *o, const char *name, const struct argp_state *state)
{
    for (uint32_t i = 1; i <= 3; i++)
        if (strcmp(name, eval_side_name(i)) == 0) {
            o->sides = i;
            return;
        }
    argp_error(state, "--side takes k, v or kv, not '%s'", name);
}

/* "0:7" */
static void eval_arguments_take_layers(struct eval_options *o, char *arg, const struct argp_state *state)
{
    char *colon = strchr(arg, ':');

    if (!colon) {
        argp_error(state, "--layers takes FIRST:LAST, as in 0:7, not '%s'", arg);
        return;
    }

    *colon = '\0';
    o->first_layer = (uint32_t) option_uint(state, "--layers", arg, 0, GEOMETRY_LAYERS_MAX - 1);
    o->n_layers =
        (uint32_t) option_uint(state, "--layers", colon + 1, o->first_layer, GEOMETRY_LAYERS_MAX - 1) + 1 -
        o->first_layer;
}

/* "0,128" */
static void eval_arguments_take_recents(struct eval_options *o, char *arg, const struct argp_state *state)
{
    char *rest = arg;

    o->n_recents = 0;
    for (const char *one = strsep(&rest, ","); one; one = strsep(&rest, ",")) {
        if (o->n_recents == EVAL_RECENTS_MAX)
            argp_error(state, "--recent takes at most %d numbers", EVAL_RECENTS_MAX);
        o->recents[o->n_recents++] = (int32_t) option_uint(state, "--recent", one, 0, INT32_MAX);
    }
    o->n_recent = o->recents[0];
}

/* Several texts or recent windows, and budgets, belong to one measurement. */
bool eval_has_texts(const struct eval_options *o)
{
    return o->n_texts > 1 || o->n_recents > 1 || o->budgets;
}

static void eval_arguments_check_texts(const struct eval_options *o, const struct argp_state *state)
{
    if (eval_has_texts(o) && (o->n_generated > 0 || o->hits || o->quartiles))
        argp_error(state,
                   "--generate, --hits and --quartiles take one --text, one number of --recent, and no "
                   "--budgets");
    if (o->budgets && o->n_tables < 2)
        argp_error(state, "--budgets compares tables: give --table twice or more");
}

/* Options that exclude each other. */
static void eval_arguments_check_measurement(const struct eval_options *o, const struct argp_state *state)
{
    if (o->n_generated > 0 && o->hits)
        argp_error(state, "--generate and --hits exclude each other");
    if (o->quartiles && o->n_layers > 0)
        argp_error(state, "--quartiles and --layers exclude each other");
    if (o->quartiles && (o->n_tables != 1 || o->n_added > 0 || o->n_generated > 0 || o->hits))
        argp_error(state, "--quartiles takes exactly one --table, no other row, and no --generate or --hits");
}

/* --hits measures the product, which has no such choices. */
static void eval_arguments_check_hits(const struct eval_options *o, const struct argp_state *state)
{
    if (o->n_tables != 1 || o->n_added > 0 || o->sides || o->n_layers > 0 || o->n_recent >= 0 ||
        o->n_sink != EVAL_SINKS_OF_TABLE)
        argp_error(state,
                   "--hits takes exactly one --table, no other row, and no --side, --layers, --recent or "
                   "--sinks");
    if (o->window < HITS_WINDOW_MIN)
        argp_error(state, "--hits needs a --window of at least %d tokens", HITS_WINDOW_MIN);
}

static void eval_arguments_set_default(struct eval_options *o, size_t n_tokens, size_t window)
{
    if (o->n_tokens == 0)
        o->n_tokens = n_tokens;
    if (o->window == 0)
        o->window = window;
}

/* Numbers of tokens that were not given. */
static void eval_arguments_set_defaults(struct eval_options *o)
{
    if (o->is_other) {
        eval_arguments_set_default(o, 0, DEFAULT_WINDOW);
    } else if (o->n_generated > 0) {
        eval_arguments_set_default(o, DEFAULT_PROMPTS_TOKENS, DEFAULT_PROMPT);
    } else if (o->hits) {
        eval_arguments_set_default(o, o->window > 0 ? o->window : DEFAULT_HITS_WINDOW, DEFAULT_HITS_WINDOW);
    } else {
        eval_arguments_set_default(o, DEFAULT_TOKENS, DEFAULT_WINDOW);
    }
}

static void eval_arguments_check_arguments(struct eval_options *o, const struct argp_state *state)
{
    if (o->extension)
        o->extension->check(o, state);
    if (!o->model || (!o->text && !o->without_text) || o->n_tables + o->n_added == 0)
        argp_error(state, "a MODEL, a --text and %s are needed",
                   o->extension ? o->extension->rows : "a --table");
    eval_arguments_check_texts(o, state);
    eval_arguments_check_measurement(o, state);
    eval_arguments_set_defaults(o);
    if (o->hits)
        eval_arguments_check_hits(o, state);
}

/* Options of numbers. False: @key is none of them. */
static bool eval_arguments_take_number(struct eval_options *o, int key, const char *arg,
                                       const struct argp_state *state)
{
    switch (key) {
    case OPT_GENERATE:
        o->n_generated = option_uint(state, "--generate", arg, 1, GENERATE_MAX);
        return true;
    case OPT_TOKENS:
        o->n_tokens = option_uint(state, "--tokens", arg, 2, (uint64_t) 1 << 32);
        return true;
    case OPT_WINDOW:
        o->window = option_uint(state, "--window", arg, 2, (uint64_t) 1 << 24);
        return true;
    case OPT_SINKS:
        o->n_sink = (int32_t) option_uint(state, "--sinks", arg, 0, TABLE_SINKS_MAX);
        return true;
    }

    return false;
}

static error_t eval_arguments_parse(int key, char *arg, struct argp_state *state)
{
    struct eval_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        if (o->extension)
            state->child_inputs[1] = o;
        return 0;
    case OPT_TABLE:
        if (o->n_tables == EVAL_TABLES_MAX)
            argp_error(state, "at most %d tables at a time", EVAL_TABLES_MAX);
        o->tables[o->n_tables++] = arg;
        return 0;
    case OPT_TEXT:
        if (o->n_texts == EVAL_TEXTS_MAX)
            argp_error(state, "at most %d texts at a time", EVAL_TEXTS_MAX);
        o->texts[o->n_texts++] = arg;
        o->text = o->texts[0];
        return 0;
    case OPT_RECENT:
        eval_arguments_take_recents(o, arg, state);
        return 0;
    case OPT_BUDGETS:
        o->budgets = true;
        return 0;
    case OPT_SIDE:
        eval_arguments_take_side(o, arg, state);
        return 0;
    case OPT_LAYERS:
        eval_arguments_take_layers(o, arg, state);
        return 0;
    case OPT_HITS:
        o->hits = true;
        return 0;
    case OPT_QUARTILES:
        o->quartiles = true;
        o->quartile_statistics = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (o->model)
            argp_error(state, "one MODEL only; '%s' is one argument too many", arg);
        o->model = arg;
        return 0;
    case ARGP_KEY_END:
        eval_arguments_check_arguments(o, state);
        return 0;
    }

    return eval_arguments_take_number(o, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
}

void eval_arguments_read(int argc, char **argv, struct eval_options *o)
{
    const struct argp_child children[] = {
        common_children[0], {o->extension ? o->extension->arguments : NULL, 0, NULL, 0}, {0}};
    const struct argp argp = {.options = options,
                              .parser = eval_arguments_parse,
                              .args_doc = "MODEL",
                              .doc = o->extension ? o->extension->doc : doc,
                              .children = children};

    command_parse(&argp, argc, argv, o);
}
