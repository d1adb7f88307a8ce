/* See calibrate_arguments.h. */
#include "tools/calibrate/calibrate_arguments.h"
#include "tools/command/option.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats.h"
#include "alloc/table.h"

enum {
    OPT_TEXT = 1,
    OPT_LINES,
    OPT_TOKENS,
    OPT_WINDOW,
    OPT_GENERATE,
    OPT_METRIC,
    OPT_MOMENTS,
    OPT_SAMPLES,
    OPT_SINKS,
    OPT_SEED,
    OPT_NO_DEPTH,
    OPT_RESUME,
};

enum {
    DEFAULT_TOKENS = 12288,
    DEFAULT_WINDOW = 1024,
    WINDOW_MIN = 64,
    WINDOW_MAX = 1 << 20,
};

static const char doc[] =
    "Measure which directions of a model's keys and values matter, and write what was found to a statistics "
    "file.\v"
    "The file serves every budget: 'kvcobra solve' makes tables of it in seconds. The text should resemble "
    "what the "
    "model will read; a few times 10000 tokens are plenty. --text may be given several times: the files take "
    "turns, window "
    "by window, until --tokens are reached. With --lines each line is a document of its own, as data sets "
    "often come; lines "
    "of fewer than 16 tokens are left out. 'kvcobra merge' adds up statistics of several runs and "
    "machines.\n\n"
    "Without --text, or with --generate, the model writes text itself. That needs no data. With SmolLM2-135M "
    "at 2 bits per "
    "number such a table costs KL 0.18 nats per token on WikiText-2 instead of the 0.11 of a table "
    "calibrated on WikiText-2, "
    "and 0.15 instead of 0.36 on C, which neither was calibrated on.\n\n"
    "--metric output (default) weighs a direction by what its error does to the output of attention, "
    "relative to the "
    "residual stream; it also serves 'solve --metric query' and the paper's methods. --metric fisher weighs "
    "it by the "
    "gradient of what the model says: better tables, and a pass back through the model. --metric attention "
    "weighs it by "
    "what the queries make of it, and measures by how much each layer reaches the output. --metric mse keeps "
    "keys and "
    "values only and serves 'solve --metric mse', as all statistics do. Several may be named, with commas, "
    "or all.\n\n"
    "Ctrl-C finishes the window at hand and leaves STATS.partial; the same command with --resume goes on "
    "from there and "
    "ends in the same bytes. A second Ctrl-C stops at once.\n\n"
    "--moments-only keeps means and covariances of keys with values and no vector of any token: 'kvcobra "
    "solve' makes a "
    "table of them with the metric of other statistics.\n\n"
    "Examples:\n\n"
    "  kvcobra calibrate model.gguf --text manual.txt -o model.stats\n"
    "  kvcobra calibrate model.gguf --text a.txt --text b.txt --metric fisher -o model.stats";

static const struct argp_option options[] = {
    {"text", OPT_TEXT, "FILE", 0, "Calibrate on this text, plain UTF-8; may be repeated", 1},
    {"lines", OPT_LINES, NULL, 0, "Each line of the texts is a document of its own", 1},
    {"generate", OPT_GENERATE, "N", 0, "Let the model write N tokens, instead of or beside --text", 1},
    {"output", 'o', "STATS", 0, "The statistics file to write (required)", 1},
    {"resume", OPT_RESUME, NULL, 0, "Go on with what Ctrl-C left beside STATS", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens of the texts to make statistics of (default 12288)", 2},
    {"window", OPT_WINDOW, "N", 0, "Tokens of a window; windows do not see each other (default 1024)", 2},
    {"metric", OPT_METRIC, "LIST", 0,
     "output, attention, fisher, mse, several of them, or all (default output)", 2},
    {"moments-only", OPT_MOMENTS, NULL, 0, "Keep means and covariances, no vectors and no metric", 2},
    {"samples", OPT_SAMPLES, "N", 0,
     "Tokens whose vectors are kept (default 12288, fewer where these take more than 4 GiB)", 3},
    {"sinks", OPT_SINKS, "N", 0, "First tokens of a window that are left out and stay exact (default 4)", 3},
    {"seed", OPT_SEED, "N", 0, "Of everything that is drawn (default 0)", 3},
    {"no-depth-weights", OPT_NO_DEPTH, NULL, 0,
     "With metric attention: do not measure how strongly each layer reaches the "
     "output. Its tables are then far worse",
     3},
    {0},
};

void calibrate_arguments_default(struct calibrate_arguments *a)
{
    *a = (struct calibrate_arguments){
        .n_tokens = DEFAULT_TOKENS,
        .window = DEFAULT_WINDOW,
        .output_metric = true,
        .n_sink = 4,
    };
}

void calibrate_arguments_deinit(struct calibrate_arguments *a)
{
    free(a->texts);
    a->texts = NULL;
}

bool calibrate_wants_depth(const struct calibrate_arguments *a)
{
    return a->attention && !a->no_depth;
}

/* A list with commas. Keys and values are kept in any case: mse adds nothing. */
static void calibrate_arguments_take_metrics(struct calibrate_arguments *a, const char *list,
                                             const struct argp_state *state)
{
    static const struct {
        const char *name;
        bool attention, output, fisher;
    } known[] = {
        {"mse", false, false, false},   {"attention", true, false, false}, {"output", false, true, false},
        {"fisher", false, false, true}, {"all", true, true, true},
    };
    size_t n_known = sizeof(known) / sizeof(known[0]), n, i;

    a->has_metric = true;
    a->attention = a->output_metric = a->fisher = false;
    for (const char *name = list;; name += n + 1) {
        n = strcspn(name, ",");
        for (i = 0; i < n_known; i++)
            if (strlen(known[i].name) == n && memcmp(known[i].name, name, n) == 0)
                break;
        if (i == n_known)
            argp_error(
                state,
                "--metric %s: the metrics are output, attention, fisher and mse, with commas between them, "
                "or all",
                list);
        a->attention |= known[i].attention;
        a->output_metric |= known[i].output;
        a->fisher |= known[i].fisher;
        if (name[n] == '\0')
            return;
    }
}

static void calibrate_arguments_check(struct calibrate_arguments *a, const struct argp_state *state)
{
    size_t most;

    if (!a->model || !a->output)
        argp_error(state, "a MODEL and -o STATS are needed");
    if (a->lines && a->n_texts == 0)
        argp_error(state, "--lines says how to read --text");
    if (a->moments_only && a->has_metric)
        argp_error(state, "--moments-only keeps no metric: leave --metric away");
    if (a->moments_only && a->n_samples > 0)
        argp_error(state, "--moments-only keeps no vectors: leave --samples away");
    if (a->no_depth && !a->attention)
        argp_error(state, "--no-depth-weights belongs to --metric attention");
    if (a->moments_only)
        a->attention = a->output_metric = a->fisher = false;
    if (a->n_texts == 0 && a->n_generate == 0)
        a->n_generate = a->n_tokens;
    most = a->n_texts > 0 && a->n_tokens > a->n_generate ? a->n_tokens : a->n_generate;
    if (a->window > most)
        a->window = most;
}

static error_t calibrate_arguments_parse(int key, char *arg, struct argp_state *state)
{
    struct calibrate_arguments *a = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        a->texts = calloc((size_t) state->argc, sizeof(*a->texts));
        return a->texts ? 0 : ENOMEM;
    case OPT_TEXT:
        a->texts[a->n_texts++] = arg;
        return 0;
    case OPT_LINES:
        a->lines = true;
        return 0;
    case OPT_GENERATE:
        a->n_generate = option_uint(state, "--generate", arg, WINDOW_MIN, 1 << 24);
        return 0;
    case 'o':
        a->output = arg;
        return 0;
    case OPT_RESUME:
        a->resume = true;
        return 0;
    case OPT_TOKENS:
        a->n_tokens = option_uint(state, "--tokens", arg, WINDOW_MIN, (uint64_t) 1 << 32);
        return 0;
    case OPT_WINDOW:
        a->window = option_uint(state, "--window", arg, WINDOW_MIN, WINDOW_MAX);
        return 0;
    case OPT_METRIC:
        calibrate_arguments_take_metrics(a, arg, state);
        return 0;
    case OPT_MOMENTS:
        a->moments_only = true;
        return 0;
    case OPT_SAMPLES:
        a->n_samples = (uint32_t) option_uint(state, "--samples", arg, 1, 1 << 20);
        return 0;
    case OPT_SINKS:
        a->n_sink = (uint32_t) option_uint(state, "--sinks", arg, 0, TABLE_SINKS_MAX);
        return 0;
    case OPT_SEED:
        a->seed = option_uint(state, "--seed", arg, 0, UINT64_MAX);
        return 0;
    case OPT_NO_DEPTH:
        a->no_depth = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->model)
            argp_error(state, "one model at a time");
        a->model = arg;
        return 0;
    case ARGP_KEY_END:
        calibrate_arguments_check(a, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

const struct argp calibrate_argp = {options, calibrate_arguments_parse, "MODEL", doc, common_children, NULL,
                                    NULL};
