/* The command line of `kvcobra calibrate`; see calibrate_arguments.h. */
#include "tools/calibrate/calibrate_arguments.h"
#include "tools/calibrate/calibrate_quick.h"
#include "tools/command/option.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats.h"
#include "alloc/table/table.h"

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
    OPT_SHARE,
    OPT_QUICK,
    OPT_BPD,
};

enum {
    DEFAULT_TOKENS = 12288,
    DEFAULT_GENERATE = 24576, /* without texts: four windows of each kind (corpus_openings.h) */
    DEFAULT_WINDOW = 1024,
    /* Beside 12288 tokens of text, a window of each kind. Chosen without a measurement: with one text, a
     * solver leaves sources out only if the text has at most three quarters of the tokens. */
    DEFAULT_SHARE = 33,
    SHARE_MAX = 90,
    QUICK_TOKENS = 3072, /* of each: of the texts, or what the model writes without texts */
    QUICK_WINDOW = 256,
    QUICK_BPD = 3,
    WINDOW_MAX = 1 << 20,
};

static const char doc[] =
    "Measure which directions of a model's keys and values matter, and write the result to a statistics "
    "file.\vThe file serves every budget: 'kvcobra solve' makes a table of it in seconds. Use text that "
    "resembles the model's later input; a few times 10000 tokens are enough. --text may be given several "
    "times: windows are taken from the files in turn until --tokens are reached. With --lines each line is "
    "a separate document, as in many data sets; lines of fewer than 16 tokens are skipped. 'kvcobra merge' "
    "adds statistics of several runs and machines.\n\n"
    "The model itself writes short documents of six kinds (prose, code, markup, dialogue, other languages, "
    "records): a third of all tokens beside --text, so that the table is also good on input of other kinds, "
    "and all tokens without it, which needs no data. Text like the model's later input is better for that "
    "input. A window that repeats earlier ones is left out. At the end, but not with --quick, a table of 3 "
    "bits is compared with "
    "the exact model, so that solves of the statistics can say what KL to expect.\n\n"
    "--quick makes a table at once, in about a minute for a small model, from less text: MODEL-quick.stats "
    "and MODEL-quick.table in the current folder, or STATS and the table beside it.\n\n"
    "The statistics of up to 8 sources (a text, or a kind of the model's) stay apart, and tables are fitted "
    "to sources that were left out, so several texts of different kinds make tables that are better on "
    "others. With --own-share 0, a text that is alone is divided into six pieces, each a source, and windows "
    "come from all of it.\n\n"
    "Metrics weigh the error of each direction:\n"
    "  output     (default) effect on the output of attention, relative to the\n"
    "             residual stream; also serves 'solve --metric query' and the\n"
    "             paper's methods\n"
    "  fisher     gradient of the model's log-probabilities: better tables, with\n"
    "             a backward pass through the model\n"
    "  attention  effect on attention as the queries see it, times a measured\n"
    "             weight per layer\n"
    "  mse        squared error; all statistics serve 'solve --metric mse'\n\n"
    "Ctrl-C stops after the current window and writes STATS.partial; the same command with --resume "
    "continues from there and writes the same bytes as one run. A second Ctrl-C stops at once.\n\n"
    "--moments-only writes means and covariances of keys with values and no vectors; 'kvcobra solve' makes "
    "a table of them with the metric of other statistics.\n\n"
    "Examples:\n\n"
    "  kvcobra calibrate --quick model.gguf\n"
    "  kvcobra calibrate model.gguf --text manual.txt -o model.stats\n"
    "  kvcobra calibrate model.gguf --text a.txt --metric fisher -o a.stats";

static const struct argp_option options[] = {
    {"text", OPT_TEXT, "FILE", 0, "Calibrate on this UTF-8 text; may be repeated", 1},
    {"lines", OPT_LINES, NULL, 0, "Each line of the texts is a separate document", 1},
    {"own-share", OPT_SHARE, "PERCENT", 0,
     "With --text: let the model write this share of all tokens, 0 to 90 (default 33)", 1},
    {"generate", OPT_GENERATE, "N", 0,
     "Let the model write N tokens, instead of a share (without --text: 24576, or as many as --tokens says)",
     1},
    {"quick", OPT_QUICK, NULL, 0, "Read less text, in windows of 256 tokens, and also make a table", 1},
    {"bpd", OPT_BPD, "BITS", 0, "With --quick: bits per number of the table (default 3)", 1},
    {"output", 'o', "STATS", 0, "The statistics file to write (required without --quick)", 1},
    {"resume", OPT_RESUME, NULL, 0, "Continue the run whose state is in STATS.partial", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens of the texts to use (default 12288, with --quick 3072)", 2},
    {"window", OPT_WINDOW, "N", 0,
     "Tokens of a window; no window sees another (default 1024, with --quick 256)", 2},
    {"metric", OPT_METRIC, "output|attention|fisher|mse|all", 0,
     "Metrics to measure; several have commas between them (default output)", 2},
    {"moments-only", OPT_MOMENTS, NULL, 0, "Write means and covariances, no vectors and no metric", 2},
    {"samples", OPT_SAMPLES, "N", 0,
     "Tokens whose vectors are stored (default 12288, fewer if these need more than 2 GiB)", 3},
    {"sinks", OPT_SINKS, "N", 0,
     "First tokens of a window, which stay exact and are not measured (default 4)", 3},
    {"seed", OPT_SEED, "N", 0, "Seed of all random choices (default 0)", 3},
    {"no-depth-weights", OPT_NO_DEPTH, NULL, 0,
     "With metric attention: do not measure the effect of each layer on the output. Tables are then far "
     "worse",
     3},
    {0},
};

void calibrate_arguments_default(struct calibrate_arguments *a)
{
    *a = (struct calibrate_arguments){
        .n_tokens = DEFAULT_TOKENS,
        .window = DEFAULT_WINDOW,
        .own_share = DEFAULT_SHARE,
        .bpd = QUICK_BPD,
        .output_metric = true,
        .n_sink = 4,
    };
}

void calibrate_arguments_deinit(struct calibrate_arguments *a)
{
    free(a->texts);
    free(a->quick_output);
    a->texts = NULL;
    a->quick_output = NULL;
}

bool calibrate_arguments_want_depth(const struct calibrate_arguments *a)
{
    return a->attention && !a->no_depth;
}

/* A comma-separated list. mse needs no sums of its own. */
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
            argp_error(state,
                       "--metric takes a comma-separated list of output, attention, fisher and mse, or all; "
                       "not '%s'",
                       list);
        a->attention |= known[i].attention;
        a->output_metric |= known[i].output;
        a->fisher |= known[i].fisher;
        if (name[n] == '\0')
            return;
    }
}

static void calibrate_arguments_check_quick(struct calibrate_arguments *a, const struct argp_state *state)
{
    if (a->has_bpd && !a->quick)
        argp_error(state, "--bpd needs --quick");
    if (!a->quick)
        return;
    if (a->moments_only)
        argp_error(state, "--quick makes a table, which needs vectors; --moments-only stores none");
    if (!a->output && a->model)
        a->output = a->quick_output = calibrate_quick_output(a->model);
    if (!a->has_window)
        a->window = QUICK_WINDOW;
    if (!a->has_tokens) {
        a->n_tokens = QUICK_TOKENS;
        a->has_tokens = true;
    }
}

static void calibrate_arguments_check(struct calibrate_arguments *a, const struct argp_state *state)
{
    size_t most;

    calibrate_arguments_check_quick(a, state);
    if (!a->model || !a->output)
        argp_error(state, "a MODEL and -o STATS are needed");
    if (a->lines && a->n_texts == 0)
        argp_error(state, "--lines needs --text");
    if (a->has_share && a->n_texts == 0)
        argp_error(state, "--own-share needs --text: without texts the model writes everything");
    if (a->has_share && a->n_generate > 0)
        argp_error(state, "--own-share and --generate exclude each other");
    if (a->moments_only && a->has_metric)
        argp_error(state, "--moments-only and --metric exclude each other");
    if (a->moments_only && a->n_samples > 0)
        argp_error(state, "--moments-only and --samples exclude each other");
    if (a->no_depth && !a->attention)
        argp_error(state, "--no-depth-weights needs --metric attention");
    if (a->moments_only)
        a->attention = a->output_metric = a->fisher = false;
    if (a->n_texts == 0 && a->n_generate == 0)
        a->n_generate = a->has_tokens ? a->n_tokens : DEFAULT_GENERATE;
    most = a->n_texts > 0 && a->n_tokens > a->n_generate ? a->n_tokens : a->n_generate;
    if (a->window > most)
        a->window = most;
}

/* Options of the texts and of what the model writes. */
static error_t calibrate_arguments_parse_text(int key, char *arg, struct argp_state *state)
{
    struct calibrate_arguments *a = state->input;

    switch (key) {
    case OPT_TEXT:
        a->texts[a->n_texts++] = arg;
        return 0;
    case OPT_LINES:
        a->lines = true;
        return 0;
    case OPT_SHARE:
        a->own_share = (unsigned) option_uint(state, "--own-share", arg, 0, SHARE_MAX);
        a->has_share = true;
        return 0;
    case OPT_GENERATE:
        a->n_generate = option_uint(state, "--generate", arg, CALIBRATE_WINDOW_MIN, 1 << 24);
        return 0;
    case OPT_TOKENS:
        a->n_tokens = option_uint(state, "--tokens", arg, CALIBRATE_WINDOW_MIN, (uint64_t) 1 << 32);
        a->has_tokens = true;
        return 0;
    case OPT_WINDOW:
        a->window = option_uint(state, "--window", arg, CALIBRATE_WINDOW_MIN, WINDOW_MAX);
        a->has_window = true;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static error_t calibrate_arguments_parse(int key, char *arg, struct argp_state *state)
{
    struct calibrate_arguments *a = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        a->texts = calloc((size_t) state->argc, sizeof(*a->texts));
        return a->texts ? 0 : ENOMEM;
    case OPT_QUICK:
        a->quick = true;
        return 0;
    case OPT_BPD:
        a->bpd = option_double(state, "--bpd", arg, 0.01, TABLE_BITS_MAX);
        a->has_bpd = true;
        return 0;
    case 'o':
        a->output = arg;
        return 0;
    case OPT_RESUME:
        a->resume = true;
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
            argp_error(state, "one MODEL only; '%s' is one argument too many", arg);
        a->model = arg;
        return 0;
    case ARGP_KEY_END:
        calibrate_arguments_check(a, state);
        return 0;
    }

    return calibrate_arguments_parse_text(key, arg, state);
}

const struct argp calibrate_argp = {options, calibrate_arguments_parse, "MODEL", doc, common_children, NULL,
                                    NULL};
