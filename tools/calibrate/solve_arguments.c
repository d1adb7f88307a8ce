/* The command line of `kvcobra solve`; see solve_arguments.h. */
#include "tools/calibrate/solve_arguments.h"
#include "tools/command/option.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_paper.h"
#include "alloc/solve/solve.h"
#include "alloc/solve/solve_names.h"
#include "alloc/stats/stats.h"
#include "alloc/table/geometry.h"
#include "base/threads.h"
#include "tools/calibrate/solve_input.h"

enum {
    OPT_BPD = 0x100, /* above all characters: more than 31 from 1 on would be short options, such as -! */
    OPT_K_BPD,
    OPT_V_BPD,
    OPT_TOTAL_BPD,
    OPT_K_ONLY,
    OPT_SWEEP,
    OPT_STEP,
    OPT_METHOD,
    OPT_METRIC,
    OPT_CURVE,
    OPT_QUANTISER,
    OPT_TEMPER,
    OPT_LOADING,
    OPT_CONTRAST,
    OPT_TRELLIS,
    OPT_FLOOR,
    OPT_CEILING,
    OPT_SEED,
    OPT_MATRICES,
    OPT_FRAME,
    OPT_NO_LEVELS,
    OPT_PREDICT,
    OPT_DECODER,
    OPT_NO_V_FROM_K,
    OPT_NO_DEPTH,
    OPT_B_MIN_BUDGET,
    OPT_RANK_STEP,
    OPT_B_RANGE,
    OPT_ETA,
    OPT_ROUNDS,
    OPT_METRIC_FROM,
    OPT_LEVELS_FROM,
    OPT_OWN_SOURCES,
    OPT_WITHOUT,
    OPT_SWAP_REPORT,
    OPT_THREADS,
    OPT_TIMING,
    OPT_EQUAL,
    OPT_WINDOWS,
};

static const char doc[] =
    "Make an allocation table from statistics: choose the stored directions of every head's keys and "
    "values, and their bits.\vThe budget is stored code bits, with padding, per number of the cache "
    "(binary16 has 16). One budget covers keys and values, whose best shares usually differ; --k-bpd and "
    "--v-bpd fix them.\n\n"
    "Methods:\n"
    "  bands      (default) each group of 8 directions of each head gets its own\n"
    "             width, 0 to 8 bits; values are predicted from their token's keys\n"
    "  paper-kl   the paper's allocator (C1 and C2) with its attention-KL weight;\n"
    "             all values get the same budget\n"
    "  paper-mse  the paper's allocator with squared error\n"
    "  dp         the paper's codecs with budgets by its exact dynamic programme\n"
    "             and measured curves; --metric query (default) or mse; --curve\n"
    "             bennett for the paper's estimate\n\n"
    "The last three are charged without padding, as in the paper. They never exceed the budget here, "
    "although rounding in the original may.\n\n"
    "Metrics: the default is the first of fisher (needs gradients), output, attention, mse that the "
    "statistics have. Without depth weights, attention weighs all layers equally, which gives poor tables.\n"
    "Curves: measured (default: quantises sampled vectors), gaussian, bennett.\n\n"
    "STATS may also be a file of moments (calibrate --moments-only, or collected by a daemon): means and "
    "covariances without vectors. The metric then comes from --metric-from (default: squared error). Curves "
    "are gaussian; levels are those of a normal distribution, or of --levels-from.\n\n"
    "Several STATS, as in 'kvcobra solve m.*.stats --bpd 3 -o tables/', are the groups of layers of one "
    "model (python -m kvcobra calibrate writes them): one "
    "budget "
    "is divided among the bands of all, where it lowers the distortion most, and each gets a table in the "
    "folder of -o. That needs metric fisher or output; with another each group gets the same bits per "
    "number.\n\n"
    "--sweep solves all splits of --total-bpd between keys and values, in steps, and prints their "
    "distortions; with -o it writes the tables there.\n\n"
    "--swap-report says what of a table does not serve other texts: it codes those of OTHER with a table of "
    "STATS, takes one statistic from OTHER at a time, fits what depends on it again, and prints the "
    "distortion that is left (1: that statistic is as good as that of OTHER). Half of OTHER's sampled "
    "tokens are fitted to, the other half measured, in 8 layers. It writes no table.\n\n"
    "Examples:\n\n"
    "  kvcobra solve model.stats --bpd 3 -o model-3.table\n"
    "  kvcobra solve model.stats --total-bpd 6 --sweep -o splits/\n"
    "  kvcobra solve monday.stats --bpd 3 --swap-report tuesday.stats";

static const struct argp_option options[] = {
    {"bpd", OPT_BPD, "B", 0, "Bits per number, keys and values together", 1},
    {"k-bpd", OPT_K_BPD, "B", 0, "Bits per number of keys; with --v-bpd, instead of --bpd", 1},
    {"v-bpd", OPT_V_BPD, "B", 0, "Bits per number of values", 1},
    {"k-only", OPT_K_ONLY, NULL, 0,
     "--bpd is for keys; values get 8 bits, the maximum of a table (eval --side k reads exact values)", 1},
    {"total-bpd", OPT_TOTAL_BPD, "T", 0, "Bits of a key number plus a value number; the same as --bpd T/2",
     1},
    {"sweep", OPT_SWEEP, NULL, 0, "With --total-bpd: solve all splits between keys and values", 1},
    {"step", OPT_STEP, "B", 0, "Step of --sweep (default 1)", 1},
    {"output", 'o', "PATH", 0,
     "The table file to write; with several STATS the folder of the tables; with --sweep an optional folder",
     1},
    {"method", OPT_METHOD, "bands|paper-kl|paper-mse|dp", 0, "Solver, see below", 2},
    {"metric", OPT_METRIC, "fisher|output|attention|query|mse", 0,
     "Weight of errors; method dp has query and mse alone", 2},
    {"metric-from", OPT_METRIC_FROM, "STATS", 0, "For moments: the statistics that have the metric", 2},
    {"levels-from", OPT_LEVELS_FROM, "TABLE", 0, "Use the levels of this table instead of fitting them", 3},
    {"curve", OPT_CURVE, "measured|gaussian|bennett", 0, "Distortion curve (bands, dp)", 2},
    {"quantiser", OPT_QUANTISER, "lloyd-max|uniform|uniform-midtread", 0, "Levels of codes", 2},
    {"temper", OPT_TEMPER, "P", 0,
     "Raise the metric to this power and keep its trace (default 0.75 for fisher and output, 1 for "
     "attention)",
     3},
    {"loading", OPT_LOADING, "K[,V]", 0,
     "Make quantisers of keys and values so many times wider than those of least squared error, 1 to 2: loud "
     "tokens are cut less (default 1.4,1.1, of codes of one bit 1.2,1, chosen by KL)",
     3},
    {"contrast", OPT_CONTRAST, "K[,V]", 0,
     "Give back this part of the variance that least squares takes from what is decoded, 0 to 1 (default "
     "1, chosen by KL)",
     3},
    {"trellis", OPT_TRELLIS, "STATES", 0,
     "Levels of codes of up to four bits belong to the states of a trellis: 64 (default), 128 or 256, which "
     "lose "
     "less and encode more slowly; 0: scalar levels, which tables of format 2 have",
     3},
    {"matrices", OPT_MATRICES, "NAME", 0,
     "Numbers of the matrices of a table with trellises: binary16 (default), or binary32, which takes twice "
     "the "
     "bytes",
     3},
    {"frame", OPT_FRAME, "1|block", 0,
     "Bases of keys: 1 (default) over all RoPE planes; block: fast planes, which turn by more than 0.1 "
     "radians "
     "per token, and slow ones apart, which makes attention on a CPU faster and loses more",
     3},
    {"no-fitted-levels", OPT_NO_LEVELS, NULL, 0, "Use the levels of a normal distribution", 3},
    {"predict", OPT_PREDICT, "head|layer|none", 0,
     "Code values as residuals of a prediction from keys: of their own head (head, default), of all heads of "
     "the layer (layer: better, slower to read, and every process needs all heads), or none",
     3},
    {"decoder", OPT_DECODER, "least-squares|inverse", 0,
     "Decode matrices: least-squares (default), fitted to the codes of sampled vectors; or inverse, the "
     "inverse of the encoder",
     3},
    {"no-v-from-k", OPT_NO_V_FROM_K, NULL, 0, "The same as --predict none", 3},
    {"no-depth-weights", OPT_NO_DEPTH, NULL, 0, "Weigh the distortion of all layers equally", 3},
    {"own-sources", OPT_OWN_SOURCES, NULL, 0,
     "Fit to the texts of the statistics, not to texts that were left out: better on them, worse on others",
     3},
    {"without", OPT_WITHOUT, "N", 0,
     "Leave out source N of the statistics (from 1, as 'inspect' lists them), to measure the table on it", 3},
    {"swap-report", OPT_SWAP_REPORT, "OTHER", 0,
     "Instead of a table: what is left of the distortion of these statistics if one part comes from them", 1},
    {"equal", OPT_EQUAL, NULL, 0,
     "Also solve with the same bits for every head and side, and print their distortion beside that of the "
     "table (twice the time)",
     1},
    {"windows", OPT_WINDOWS, "W,...", 0,
     "With several STATS: tokens that the layers of each attend to, 0 for all. Numbers count W / 4096", 1},
    {"floor", OPT_FLOOR, "B", 0, "Minimum bits per number of every head and side", 3},
    {"ceiling", OPT_CEILING, "B", 0, "Maximum bits per number of every head and side", 3},
    {"seed", OPT_SEED, "N", 0, "Seed of the rotations' signs (default 0)", 3},
    {"threads", OPT_THREADS, "N", 0,
     "Threads that share the heads (default: as many as the process may use processors). The table does not "
     "depend on it",
     3},
    {"timing", OPT_TIMING, NULL, 0, "Print the time of every step", 3},
    {NULL, 0, NULL, 0, "Options of the paper's methods, with its defaults:", 4},
    {"b-min-budget", OPT_B_MIN_BUDGET, "BITS", 0,
     "B_min: minimum budget of a head, bits per token (default 8)", 4},
    {"rank-step", OPT_RANK_STEP, "N", 0, "Ranks are multiples of N (default 2)", 4},
    {"b-range", OPT_B_RANGE, "MIN:MAX", 0, "Minimum and maximum bits of a stored coordinate (default 2:8)",
     4},
    {"eta", OPT_ETA, "X", 0, "Damping of C2 (default 0.3; not dp)", 4},
    {"rounds", OPT_ROUNDS, "N", 0, "Rounds of C2 (default 5; not dp)", 4},
    {0},
};

void solve_arguments_default(struct solve_arguments *a)
{
    struct paper_options paper;

    paper_options_default(&paper, 0);
    *a = (struct solve_arguments){
        .ceil_bpd = TABLE_BITS_MAX,
        .step = 1,
        .paper =
            {
                .struct_bytes = sizeof(a->paper),
                .b_min_budget = paper.B_min,
                .eta = paper.eta,
                .rounds = paper.rounds,
                .rank_step = paper.rank_step,
                .b_min = paper.b_min,
                .b_max = paper.b_max,
            },
    };
}

/* The public enumerators are the internal ones plus 1, except methods: 0 is the default. */
static void solve_arguments_take_name(struct solve_arguments *a, int key, const char *name,
                                      const struct argp_state *state)
{
    enum method method = METHOD_BANDS;
    enum metric metric = METRIC_MSE;
    enum curve curve = CURVE_MEASURED;
    enum quantiser quantiser = QUANT_LLOYD_MAX;
    enum prediction predict = PREDICT_NONE;
    enum decoder decoder = DECODER_INVERSE;

    switch (key) {
    case OPT_METHOD:
        if (solve_method_from_name(name, &method) < 0)
            argp_error(state, "--method %s: the methods are bands, paper-kl, paper-mse and dp", name);
        a->method = method;
        return;
    case OPT_METRIC:
        if (solve_metric_from_name(name, &metric) < 0)
            argp_error(state, "--metric %s: the metrics are output, attention, query, mse and fisher", name);
        a->metric = metric + 1;
        return;
    case OPT_CURVE:
        if (solve_curve_from_name(name, &curve) < 0)
            argp_error(state, "--curve %s: the curves are measured, gaussian and bennett", name);
        a->curve = curve + 1;
        return;
    case OPT_QUANTISER:
        if (solve_quantiser_from_name(name, &quantiser) < 0)
            argp_error(state, "--quantiser %s: the quantisers are lloyd-max, uniform and uniform-midtread",
                       name);
        a->quantiser = quantiser + 1;
        return;
    case OPT_PREDICT:
        if (solve_prediction_from_name(name, &predict) < 0)
            argp_error(state, "--predict %s: values are predicted from none, head or layer", name);
        a->predict = predict + 1;
        return;
    default:
        if (solve_decoder_from_name(name, &decoder) < 0)
            argp_error(state, "--decoder %s: the decoders are inverse and least-squares", name);
        a->decoder = decoder + 1;
        return;
    }
}

/* "2:8" */
static void solve_arguments_take_range(struct solve_arguments *a, char *arg, const struct argp_state *state)
{
    char *colon = strchr(arg, ':');

    if (!colon)
        argp_error(state, "--b-range %s: least and most bits, as in 2:8", arg);
    *colon = '\0';
    a->paper.b_min = (uint32_t) option_uint(state, "--b-range", arg, 1, TABLE_BITS_MAX);
    a->paper.b_max = (uint32_t) option_uint(state, "--b-range", colon + 1, a->paper.b_min, TABLE_BITS_MAX);
}

/* "1.2", of keys and values, or "1.2,1" */
static void solve_arguments_take_pair(const char *option, char *arg, double least, double most,
                                      double ret[static 2], const struct argp_state *state)
{
    char *comma = strchr(arg, ',');

    if (comma)
        *comma = '\0';
    ret[0] = option_double(state, option, arg, least, most);
    ret[1] = comma ? option_double(state, option, comma + 1, least, most) : ret[0];
}

/* Return: whether @key has values of its own for keys and values. */
static bool solve_arguments_take_sides(struct solve_arguments *a, int key, char *arg,
                                       const struct argp_state *state)
{
    switch (key) {
    case OPT_LOADING:
        solve_arguments_take_pair("--loading", arg, 1, SOLVE_LOADING_MAX, a->loading, state);
        return true;
    case OPT_TRELLIS:
        a->trellis_states = (uint32_t) option_uint(state, "--trellis", arg, 0, 256);
        if (a->trellis_states != 0 && a->trellis_states != 64 && a->trellis_states != 128 &&
            a->trellis_states != 256)
            argp_error(state, "--trellis %s: 0, 64, 128 and 256 are possible", arg);
        if (a->trellis_states == 0) /* 0 is the library's default */
            a->trellis_states = 1;
        return true;
    case OPT_CONTRAST:
        solve_arguments_take_pair("--contrast", arg, 0, 1, a->contrast, state);
        for (unsigned side = 0; side < 2; side++) /* 0 is the library's default */
            a->contrast[side] = a->contrast[side] == 0 ? -1 : a->contrast[side];
        return true;
    }

    return false;
}

/* Return: whether @key says what form the table's matrices have. */
static bool solve_arguments_take_form(struct solve_arguments *a, int key, const char *arg,
                                      const struct argp_state *state)
{
    switch (key) {
    case OPT_MATRICES:
        a->single = strcmp(arg, "binary32") == 0;
        if (!a->single && strcmp(arg, "binary16") != 0)
            argp_error(state, "--matrices %s: binary16 and binary32 are possible", arg);
        return true;
    case OPT_FRAME:
        a->blocks = strcmp(arg, "block") == 0;
        if (!a->blocks && strcmp(arg, "1") != 0)
            argp_error(state, "--frame %s: 1 and block are possible", arg);
        return true;
    }

    return false;
}

/* Return: whether @key is one of the paper's. */
static bool solve_arguments_take_paper(struct solve_arguments *a, int key, char *arg,
                                       const struct argp_state *state)
{
    kvc_paper_options *p = &a->paper;

    switch (key) {
    case OPT_B_MIN_BUDGET:
        p->b_min_budget = option_double(state, "--b-min-budget", arg, 0, GEOMETRY_DIM_MAX * TABLE_BITS_MAX);
        a->paper_option = "--b-min-budget";
        return true;
    case OPT_RANK_STEP:
        p->rank_step = (uint32_t) option_uint(state, "--rank-step", arg, 1, GEOMETRY_DIM_MAX);
        a->paper_option = "--rank-step";
        return true;
    case OPT_B_RANGE:
        solve_arguments_take_range(a, arg, state);
        a->paper_option = "--b-range";
        return true;
    case OPT_ETA:
        p->eta = option_double(state, "--eta", arg, 0, 100);
        a->paper_option = a->c2_option = "--eta";
        return true;
    case OPT_ROUNDS:
        p->rounds = (uint32_t) option_uint(state, "--rounds", arg, 0, 10000);
        a->paper_option = a->c2_option = "--rounds";
        return true;
    }

    return false;
}

/* Return: whether @key is a budget. */
static bool solve_arguments_take_budget(struct solve_arguments *a, int key, const char *arg,
                                        const struct argp_state *state)
{
    switch (key) {
    case OPT_BPD:
        a->bpd = option_double(state, "--bpd", arg, 0.01, TABLE_BITS_MAX);
        return true;
    case OPT_K_BPD:
        a->k_bpd = option_double(state, "--k-bpd", arg, 0.01, TABLE_BITS_MAX);
        return true;
    case OPT_V_BPD:
        a->v_bpd = option_double(state, "--v-bpd", arg, 0.01, TABLE_BITS_MAX);
        return true;
    case OPT_TOTAL_BPD:
        a->total_bpd = option_double(state, "--total-bpd", arg, 0.02, 2 * TABLE_BITS_MAX);
        return true;
    case OPT_STEP:
        a->step = option_double(state, "--step", arg, 0.05, TABLE_BITS_MAX);
        return true;
    case OPT_TEMPER:
        a->temper = option_double(state, "--temper", arg, 0.01, 2);
        return true;
    case OPT_FLOOR:
        a->floor_bpd = option_double(state, "--floor", arg, 0, TABLE_BITS_MAX);
        return true;
    case OPT_CEILING:
        a->ceil_bpd = option_double(state, "--ceiling", arg, 0.01, TABLE_BITS_MAX);
        return true;
    case OPT_WINDOWS:
        a->windows = arg;
        return true;
    }

    return false;
}

/* Options without a value. False: @key is none of them. */
static bool solve_arguments_take_flag(struct solve_arguments *a, int key)
{
    switch (key) {
    case OPT_K_ONLY:
        a->k_only = true;
        return true;
    case OPT_SWEEP:
        a->sweep = true;
        return true;
    case OPT_NO_LEVELS:
        a->no_levels = true;
        return true;
    case OPT_NO_DEPTH:
        a->no_depth = true;
        return true;
    case OPT_OWN_SOURCES:
        a->own_sources = true;
        return true;
    case OPT_EQUAL:
        a->equal = true;
        return true;
    }

    return false;
}

/* Several statistics have one budget, and the metric of each. */
static void solve_arguments_check_groups(const struct solve_arguments *a, const struct argp_state *state)
{
    const struct {
        bool given;
        const char *what;
    } single[] = {{a->sweep, "--sweep"},
                  {a->swap_report != NULL, "--swap-report"},
                  {a->metric_from != NULL, "--metric-from"},
                  {a->levels_from != NULL, "--levels-from"},
                  {a->k_only, "--k-only"},
                  {a->k_bpd > 0 || a->v_bpd > 0, "--k-bpd and --v-bpd"},
                  {a->without > 0, "--without"},
                  {a->timing, "--timing"},
                  {a->method != KVC_METHOD_BANDS, "another method than bands"}};

    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++)
        if (single[i].given)
            argp_error(state, "%zu STATS files share one budget (--bpd): %s is for one file", a->n_groups,
                       single[i].what);
}

static void solve_arguments_check(struct solve_arguments *a, const struct argp_state *state)
{
    bool apart = a->k_bpd > 0 || a->v_bpd > 0;

    if (!a->statistics || (!a->output && !a->sweep && !a->swap_report))
        argp_error(state, "a STATS file and -o TABLE are needed");
    if (a->n_groups > 1)
        solve_arguments_check_groups(a, state);
    else if (a->windows)
        argp_error(state, "--windows is for several STATS files");
    if (a->swap_report && (a->output || a->sweep))
        argp_error(state, "--swap-report makes no table: leave out %s", a->sweep ? "--sweep" : "-o");
    if (a->swap_report && (a->method != KVC_METHOD_BANDS || a->without > 0 || a->own_sources || a->blocks))
        argp_error(
            state,
            "--swap-report is for the method bands, without --without, --own-sources and --frame block");
    if (a->own_sources && a->method != KVC_METHOD_BANDS)
        argp_error(state, "--own-sources is for the method bands: the others leave no source out");
    if (a->timing && (a->sweep || a->swap_report))
        argp_error(state, "--timing is for one table");
    if (a->equal && (a->method != KVC_METHOD_BANDS || a->sweep || a->swap_report))
        argp_error(state, "--equal is for one table of the method bands");
    if ((a->bpd > 0) + (a->total_bpd > 0) + apart != 1 || (apart && !(a->k_bpd > 0 && a->v_bpd > 0)))
        argp_error(state, "give one budget: --bpd, or --total-bpd, or --k-bpd and --v-bpd");
    if (a->k_only && !(a->bpd > 0))
        argp_error(state, "--k-only takes the keys' bits from --bpd");
    if (a->sweep && !(a->total_bpd > 0))
        argp_error(state, "--sweep needs --total-bpd");
    if (a->sweep && a->total_bpd < 2 * a->step)
        argp_error(state, "--sweep: a total of %g cannot be split in steps of %g", a->total_bpd, a->step);
    if (a->step != 1 && !a->sweep)
        argp_error(state, "--step needs --sweep");
    if (a->paper_option && a->method == KVC_METHOD_BANDS)
        argp_error(state, "%s is for the methods paper-kl, paper-mse and dp", a->paper_option);
    if (a->c2_option && a->method == KVC_METHOD_DP)
        argp_error(state, "%s is for C2, which method dp replaces", a->c2_option);
}

/* A total is twice the mean. With --k-only values get the most bits that a table can store. */
static void solve_arguments_derive_budget(struct solve_arguments *a)
{
    if (a->total_bpd > 0)
        a->bpd = a->total_bpd / 2;
    if (!a->k_only)
        return;

    a->k_bpd = a->bpd;
    a->v_bpd = TABLE_BITS_MAX;
}

static error_t solve_arguments_parse(int key, char *arg, struct argp_state *state)
{
    struct solve_arguments *a = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case 'o':
        a->output = arg;
        return 0;
    case OPT_METHOD:
    case OPT_METRIC:
    case OPT_CURVE:
    case OPT_QUANTISER:
    case OPT_PREDICT:
    case OPT_DECODER:
        solve_arguments_take_name(a, key, arg, state);
        return 0;
    case OPT_METRIC_FROM:
        a->metric_from = arg;
        return 0;
    case OPT_LEVELS_FROM:
        a->levels_from = arg;
        return 0;
    case OPT_NO_V_FROM_K:
        solve_arguments_take_name(a, OPT_PREDICT, "none", state);
        return 0;
    case OPT_SWAP_REPORT:
        a->swap_report = arg;
        return 0;
    case OPT_WITHOUT:
        a->without = (uint32_t) option_uint(state, "--without", arg, 1, STATS_DOMAINS_MAX);
        return 0;
    case OPT_THREADS:
        a->threads = (uint32_t) option_uint(state, "--threads", arg, 1, THREADS_MAX);
        return 0;
    case OPT_TIMING:
        a->timing = true;
        return 0;
    case OPT_SEED:
        a->seed = option_uint(state, "--seed", arg, 0, UINT64_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (a->n_groups == SOLVE_GROUPS_MAX)
            argp_error(state, "at most %d STATS files; '%s' is one too many", SOLVE_GROUPS_MAX, arg);
        if (!a->statistics)
            a->statistics = arg;
        a->groups[a->n_groups++] = arg;
        return 0;
    case ARGP_KEY_END:
        solve_arguments_check(a, state);
        solve_arguments_derive_budget(a);
        return 0;
    }

    if (solve_arguments_take_flag(a, key) || solve_arguments_take_form(a, key, arg, state) ||
        solve_arguments_take_budget(a, key, arg, state) || solve_arguments_take_sides(a, key, arg, state) ||
        solve_arguments_take_paper(a, key, arg, state))
        return 0;

    return ARGP_ERR_UNKNOWN;
}

const struct argp solve_argp = {options, solve_arguments_parse, "STATS...", doc, common_children, NULL, NULL};

void solve_arguments_apply(const struct solve_arguments *a, const struct solve_input *in,
                           kvc_solve_options *ret)
{
    *ret = (kvc_solve_options){
        .struct_bytes = sizeof(*ret),
        .bpd = a->bpd,
        .k_bpd = a->k_bpd,
        .v_bpd = a->v_bpd,
        .method = a->method,
        .metric = a->metric,
        .curve = a->curve,
        .quantiser = a->quantiser,
        .predict = a->predict,
        .decoder = a->decoder,
        .without = a->without,
        .temper = a->temper,
        .floor_bpd = a->floor_bpd,
        .ceil_bpd = a->ceil_bpd,
        .loading_k = a->loading[0],
        .loading_v = a->loading[1],
        .contrast_k = a->contrast[0],
        .contrast_v = a->contrast[1],
        .trellis_states = a->trellis_states,
        .seed = a->seed,
        .threads = a->threads,
        .levels_from = in->levels,
        .levels_from_bytes = in->n_levels,
        .paper = a->method == KVC_METHOD_BANDS ? NULL : &a->paper,
    };
    if (a->no_levels)
        ret->flags |= KVC_SOLVE_NORMAL_LEVELS;
    if (a->single)
        ret->flags |= KVC_SOLVE_BINARY32;
    if (a->blocks)
        ret->flags |= KVC_SOLVE_BLOCKS;
    if (a->no_depth)
        ret->flags |= KVC_SOLVE_NO_DEPTH_WEIGHTS;
    if (a->own_sources)
        ret->flags |= KVC_SOLVE_OWN_SOURCES;
}
