/*
 * kvcobra solve: spend a bit budget where the statistics say that it matters, and write the allocation table.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/clock.h"
#include "tools/command.h"
#include "tools/progress.h"
#include "tools/report.h"

enum {
    OPT_BPD = 1, OPT_K_BPD, OPT_V_BPD, OPT_METHOD, OPT_METRIC, OPT_CURVE, OPT_QUANTISER, OPT_FLOOR, OPT_CEILING,
    OPT_SEED, OPT_NO_LEVELS, OPT_NO_V_FROM_K, OPT_NO_DEPTH,
};

/* What was typed; the method's own defaults fill the rest once it is known. */
struct solve_arguments {
    struct common_options common;
    const char *statistics, *output;
    double bpd, k_bpd, v_bpd, floor_bpd, ceil_bpd;
    enum method method;
    enum metric metric;
    enum curve curve;
    enum quantiser quantiser;
    bool has_metric, has_curve, has_quantiser, no_levels, no_v_from_k, no_depth;
    uint64_t seed;
};

static const char doc[] =
    "Make an allocation table from statistics: which directions of every head's keys and values are stored, and in how "
    "many bits.\v"
    "The budget counts stored code bits, padding included, per number of the cache (binary16 is 16). One budget covers "
    "keys and values, which usually want different shares; --k-bpd and --v-bpd fix them.\n\n"
    "Methods:\n"
    "  bands      (default) every group of 8 directions of every head gets its own width, 0 to 8 bits; values are "
    "predicted from their token's keys\n"
    "  paper-kl   the paper's allocator under its attention-KL weight, values uniform\n"
    "  paper-mse  the paper's allocator under squared error\n"
    "The paper's methods never spend more than the budget here, although rounding in the original may.\n\n"
    "Metrics: attention (default), query, mse, and fisher if the statistics hold gradients.\n"
    "Curves: measured (default: quantises sampled vectors), gaussian, bennett.\n\n"
    "Example:\n\n"
    "  kvcobra solve model.stats --bpd 3 -o model-3.table";

static const struct argp_option options[] = {
    { "bpd", OPT_BPD, "B", 0, "Bits per number, keys and values together", 1 },
    { "k-bpd", OPT_K_BPD, "B", 0, "Bits per number of keys; with --v-bpd, instead of --bpd", 1 },
    { "v-bpd", OPT_V_BPD, "B", 0, "Bits per number of values", 1 },
    { "output", 'o', "TABLE", 0, "The table file to write (required)", 1 },
    { "method", OPT_METHOD, "NAME", 0, "bands, paper-kl or paper-mse", 2 },
    { "metric", OPT_METRIC, "NAME", 0, "attention, query, mse or fisher (bands)", 2 },
    { "curve", OPT_CURVE, "NAME", 0, "measured, gaussian or bennett (bands)", 2 },
    { "quantiser", OPT_QUANTISER, "NAME", 0, "lloyd-max, uniform or uniform-midtread", 2 },
    { "no-fitted-levels", OPT_NO_LEVELS, NULL, 0, "Keep the levels of a normal distribution", 3 },
    { "no-v-from-k", OPT_NO_V_FROM_K, NULL, 0, "Code values without looking at keys", 3 },
    { "no-depth-weights", OPT_NO_DEPTH, NULL, 0, "Count the harm in all layers alike", 3 },
    { "floor", OPT_FLOOR, "B", 0, "At least so many bits per number for every head and side", 3 },
    { "ceiling", OPT_CEILING, "B", 0, "At most so many", 3 },
    { "seed", OPT_SEED, "N", 0, "Of the rotations' signs (default 0)", 3 },
    { 0 },
};

static void take_name(struct solve_arguments *a, int key, const char *name, const struct argp_state *state)
{
    if (key == OPT_METHOD && method_from_name(name, &a->method) < 0)
        argp_error(state, "--method %s: the methods are bands, paper-kl and paper-mse", name);
    if (key == OPT_METRIC && metric_from_name(name, &a->metric) < 0)
        argp_error(state, "--metric %s: the metrics are attention, query, mse and fisher", name);
    if (key == OPT_CURVE && curve_from_name(name, &a->curve) < 0)
        argp_error(state, "--curve %s: the curves are measured, gaussian and bennett", name);
    if (key == OPT_QUANTISER && quantiser_from_name(name, &a->quantiser) < 0)
        argp_error(state, "--quantiser %s: the quantisers are lloyd-max, uniform and uniform-midtread", name);
    a->has_metric |= key == OPT_METRIC;
    a->has_curve |= key == OPT_CURVE;
    a->has_quantiser |= key == OPT_QUANTISER;
}

static void check(const struct solve_arguments *a, const struct argp_state *state)
{
    bool apart = a->k_bpd > 0 || a->v_bpd > 0;

    if (!a->statistics || !a->output)
        argp_error(state, "a STATS file and -o TABLE are needed");
    if (apart ? a->bpd > 0 || !(a->k_bpd > 0) || !(a->v_bpd > 0) : !(a->bpd > 0))
        argp_error(state, "either --bpd, or --k-bpd and --v-bpd");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct solve_arguments *a = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        return 0;
    case OPT_BPD:
        a->bpd = option_double(state, "--bpd", arg, 0.01, TABLE_BITS_MAX);
        return 0;
    case OPT_K_BPD:
        a->k_bpd = option_double(state, "--k-bpd", arg, 0.01, TABLE_BITS_MAX);
        return 0;
    case OPT_V_BPD:
        a->v_bpd = option_double(state, "--v-bpd", arg, 0.01, TABLE_BITS_MAX);
        return 0;
    case 'o':
        a->output = arg;
        return 0;
    case OPT_METHOD:
    case OPT_METRIC:
    case OPT_CURVE:
    case OPT_QUANTISER:
        take_name(a, key, arg, state);
        return 0;
    case OPT_NO_LEVELS:
        a->no_levels = true;
        return 0;
    case OPT_NO_V_FROM_K:
        a->no_v_from_k = true;
        return 0;
    case OPT_NO_DEPTH:
        a->no_depth = true;
        return 0;
    case OPT_FLOOR:
        a->floor_bpd = option_double(state, "--floor", arg, 0, TABLE_BITS_MAX);
        return 0;
    case OPT_CEILING:
        a->ceil_bpd = option_double(state, "--ceiling", arg, 0, TABLE_BITS_MAX);
        return 0;
    case OPT_SEED:
        a->seed = option_uint(state, "--seed", arg, 0, UINT64_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (a->statistics)
            argp_error(state, "one statistics file at a time");
        a->statistics = arg;
        return 0;
    case ARGP_KEY_END:
        check(a, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = { options, parse, "STATS", doc, common_children, NULL, NULL };

static void make_options(const struct solve_arguments *a, const struct stats *s, struct progress *p,
                         struct solve_options *ret)
{
    solve_options_for(ret, a->method, a->bpd);
    ret->k_bpd = a->k_bpd;
    ret->v_bpd = a->v_bpd;
    ret->floor_bpd = a->floor_bpd;
    ret->ceil_bpd = a->ceil_bpd;
    ret->seed = a->seed;
    if (a->has_metric)
        ret->metric = a->metric;
    else if (a->method == METHOD_BANDS && !stats_get_options(s)->want_attention)
        ret->metric = METRIC_MSE; /* announced by the caller */
    if (a->has_curve)
        ret->curve = a->curve;
    if (a->has_quantiser) {
        ret->quantiser = a->quantiser;
        ret->fit_levels = ret->fit_levels && a->quantiser == QUANT_LLOYD_MAX;
    }
    ret->fit_levels = ret->fit_levels && !a->no_levels;
    ret->v_from_k = ret->v_from_k && !a->no_v_from_k;
    ret->depth_weights = ret->depth_weights && !a->no_depth;
    ret->progress = progress_callback;
    ret->progress_ctx = p;
}

static void remark(const struct solve_arguments *a, const struct stats *s, const struct solve_options *o)
{
    if (!a->has_metric && a->method == METHOD_BANDS && o->metric == METRIC_MSE)
        command_note(&a->common, "%s has no queries: solving for squared error (--metric mse)", a->statistics);
    if (o->metric == METRIC_ATTENTION && o->depth_weights && !stats_has_depth(s))
        command_note(&a->common, "%s has no depth weights: the harm in all layers counts alike", a->statistics);
}

static int print_result(const struct solve_arguments *a, const struct solve_options *o, const struct solve_report *r,
                        const uint8_t *digest, size_t n_bytes, double seconds)
{
    char hex[DIGEST_HEX_BYTES], took[HUMAN_BYTES], size[HUMAN_BYTES];

    if (a->common.json)
        return report_json(json_pack(
            "{s:s, s:s, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "table", a->output, "digest",
            digest_hex(digest, hex), "bytes", (json_int_t) n_bytes, "method", method_name(o->method), "metric",
            metric_name(o->metric), "bpd_code", r->bpd_code, "bpd_nominal", r->bpd_nominal, "k_bpd", r->k_bpd, "v_bpd",
            r->v_bpd, "distortion", r->distortion, "distortion_k", r->distortion_k, "distortion_v", r->distortion_v,
            "distortion_estimated", r->distortion_estimated, "seconds", seconds));
    printf("%s: table %s, %s, in %s\n", a->output, digest_short(digest, hex), human_bytes(n_bytes, size),
           human_seconds(seconds, took));
    printf("bits per number  %.4f stored: keys %.4f, values %.4f", r->bpd_code, r->k_bpd, r->v_bpd);
    if (r->bpd_nominal < r->bpd_code - 1e-9)
        printf("; %.4f without padding", r->bpd_nominal);
    printf("\nharm             %.6g (%s): keys %.6g, values %.6g; %.6g while solving\n", r->distortion,
           metric_name(o->metric), r->distortion_k, r->distortion_v, r->distortion_estimated);
    return COMMAND_OK;
}

static int run(int argc, char **argv)
{
    struct solve_arguments a = { .ceil_bpd = TABLE_BITS_MAX };
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(progress_end) struct progress p;
    struct solve_report report;
    struct solve_options o;
    double begun = clock_seconds();
    struct errmsg e = { "" };
    size_t n_bytes;
    int r;

    progress_start(&p, "reading", NULL, 1, true); /* nothing to take away if the command line ends it here */
    command_parse(&argp, argc, argv, &a);
    progress_start(&p, "reading", NULL, 1, a.common.quiet);
    r = stats_load(a.statistics, &s, &e);
    if (r < 0)
        return command_fail("%s", e.text);
    make_options(&a, s, &p, &o);
    remark(&a, s, &o);
    r = solve_table(s, &o, &bytes, &n_bytes, &report, &e);
    if (r == 0)
        r = table_parse(bytes, n_bytes, &table, &e);
    if (r == 0)
        r = atomic_file_write(a.output, bytes, n_bytes, &e);
    progress_end(&p);
    if (r < 0)
        return command_fail("%s", e.text);
    return print_result(&a, &o, &report, table->digest, n_bytes, clock_seconds() - begun);
}

const struct command cmd_solve = { "solve", "spend a bit budget: make a table of statistics", run };
