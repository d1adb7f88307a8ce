/*
 * kvcobra recalibrate: solves a new table for a running daemon from the moments that its clients report of
 * live traffic, and activates it only if its distortion on that traffic is lower.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/metric.h"
#include "alloc/moments.h"
#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/stats_moments.h"
#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "client/kvcobra-operator.h"
#include "tools/calibrate/moments_distortion.h"
#include "tools/command/command.h"
#include "tools/command/operator.h"
#include "tools/command/option.h"
#include "tools/command/output_path.h"
#include "tools/command/report.h"

enum {
    OPT_STATS = 1,
    OPT_MODEL,
    OPT_TENANT,
    OPT_MARGIN,
    OPT_TOKENS,
    OPT_SHADOW,
    OPT_SHARE,
    OPT_WAIT,
    OPT_DRY
};
enum { DRAWN_TOKENS = 2048, SHADOW_POLL_MS = 500 };

#define NOT_BETTER 3 /* exit status: the active table stays; the reason is on stdout */

struct recalibrate_options {
    struct operator_options operator;
    const char *stats, *model, *output;
    struct operator_tenants tenants;
    double margin, share; /* percent */
    uint64_t min_tokens, shadow_tokens, wait_s;
    bool dry_run;
};

/* Intermediate and final results. */
struct recalibration {
    kvc_client *c;
    const struct recalibrate_options *o;
    uint8_t active[KVC_DIGEST_BYTES], model[KVC_DIGEST_BYTES], digest[KVC_DIGEST_BYTES];
    uint64_t tokens, revision;
    enum metric metric;
    double distortion_active[2], distortion_new[2];
    kvc_fit fit;
    void *table, *candidate;
    size_t n_table, n_candidate;
    struct moments *moments;
    struct stats *metric_stats, *stats;
    struct table *parsed;
    bool already; /* the solved table equals the active one */
};

static const char doc[] =
    "Solve a new table from the second moments of live traffic, which the clients of a daemon report "
    "(kvc_model_report(); kvcobrad needs moments-bytes). It gets the budgets, metric and levels of the "
    "active table. Both tables are compared on vectors drawn with these moments, and the new one is "
    "activated if its distortion is lower by the margin.\vThe metric is squared error, or with --stats that "
    "of the statistics that the active table was solved from. With --shadow-tokens clients first encode that "
    "many tokens with both tables; the new one is activated only if its measured error, keys plus values, "
    "exceeds the active table's by no more than the margin.\n\n"
    "The reports of clients are not verified: use --tenant to select trusted tenants.\n\n"
    "Exit status: 0 activated (with --dry-run: would be activated), or the solved table is already active; 1 "
    "failure, nothing was activated; 2 wrong usage; 3 not better, the active table stays.\n\n"
    "Example:\n\n"
    "  kvcobra recalibrate --stats model.stats --dry-run";

static const struct argp_option options[] = {
    {"stats", OPT_STATS, "FILE", 0, "Statistics of a calibration, for the metric", 1},
    {"model", OPT_MODEL, "DIGEST", 0,
     "At least the first six digits of the model's digest; needed if several models have active tables", 1},
    {"tenant", OPT_TENANT, "NAME", 0, "Use only reports of this tenant; may be repeated", 1},
    {"margin", OPT_MARGIN, "PERCENT", 0,
     "Reduction of the distortion that the new table must reach (default 5)", 2},
    {"min-tokens", OPT_TOKENS, "N", 0, "Fail if fewer tokens were reported (default 4096)", 2},
    {"shadow-tokens", OPT_SHADOW, "N", 0,
     "Measure the error of both tables on N live tokens before activating (default 0: do not measure)", 2},
    {"share", OPT_SHARE, "PERCENT", 0, "With --shadow-tokens: share of new chunks to measure (default 1)", 2},
    {"wait", OPT_WAIT, "SECONDS", 0, "With --shadow-tokens: fail after this time (default 3600)", 2},
    {"output", 'o', "PATH", 0, "Also write the new table to this file", 3},
    {"dry-run", OPT_DRY, NULL, 0, "Print the result and do not change the daemon", 3},
    {0},
};

static error_t cmd_recalibrate_parse(int key, char *arg, struct argp_state *state)
{
    struct recalibrate_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_STATS:
        o->stats = arg;
        return 0;
    case OPT_MODEL:
        operator_check_digest(state, "--model", arg);
        o->model = arg;
        return 0;
    case 'o':
        o->output = arg;
        return 0;
    case OPT_TENANT:
        operator_add_tenant(state, &o->tenants, arg);
        return 0;
    case OPT_MARGIN:
        o->margin = option_double(state, "--margin", arg, 0, 100);
        return 0;
    case OPT_SHARE:
        o->share = option_double(state, "--share", arg, 0, 100);
        return 0;
    case OPT_TOKENS:
        o->min_tokens = option_uint(state, "--min-tokens", arg, 1, UINT64_MAX);
        return 0;
    case OPT_SHADOW:
        o->shadow_tokens = option_uint(state, "--shadow-tokens", arg, 0, UINT64_MAX);
        return 0;
    case OPT_WAIT:
        o->wait_s = option_uint(state, "--wait", arg, 1, 1000000);
        return 0;
    case OPT_DRY:
        o->dry_run = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    case ARGP_KEY_END:
        if (o->shadow_tokens > 0 && o->share <= 0)
            argp_error(state, "--shadow-tokens needs a --share above 0");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_recalibrate_parse, NULL, doc, operator_children, NULL, NULL};

static void cmd_recalibrate_deinit(struct recalibration *x)
{
    free(x->table);
    free(x->candidate);
    (void) moments_free(x->moments);
    (void) stats_free(x->metric_stats);
    (void) stats_free(x->stats);
    (void) table_unref(x->parsed);
}

/* ---- active table and moments ---- */

/* Fetches the active table of --model, or of the only model with an active table. */
static int cmd_recalibrate_find_active(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    size_t n, found = 0;
    int r = kvc_table_list(x->c, sizeof(*tables), &tables, &n);

    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(x->c));

    for (size_t i = 0; i < n; i++) {
        if (tables[i].state != KVC_TABLE_ACTIVE)
            continue;
        if (x->o->model && !operator_digest_matches(tables[i].model_digest, x->o->model))
            continue;

        memcpy(x->active, tables[i].digest, sizeof(x->active));
        memcpy(x->model, tables[i].model_digest, sizeof(x->model));
        found++;
    }

    if (found != 1)
        return fail(e, -EINVAL,
                    found == 0 ? "the daemon has no active table%s"
                               : "several models have active tables%s: choose one with --model",
                    x->o->model ? " of this model" : "");

    r = kvc_table_fetch(x->c, x->active, &x->table, &x->n_table);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(x->c));

    return table_parse(x->table, x->n_table, &x->parsed, e);
}

static int cmd_recalibrate_fetch_moments(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n;
    int r = kvc_moments_fetch(x->c, x->model, x->o->tenants.names, x->o->tenants.n, &bytes, &n, &x->tokens);

    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(x->c));

    r = moments_parse(bytes, n, &x->moments, e);
    if (r == 0 && x->o->stats)
        r = stats_load(x->o->stats, &x->metric_stats, e);
    return r < 0 ? r : stats_from_moments(x->moments, x->metric_stats, &x->stats, e);
}

/* ---- the new table ---- */

/* The best available metric; alloc/README.md has the measurements behind this order. */
static enum metric cmd_recalibrate_best_metric(const struct stats *s)
{
    static const enum metric in_order[] = {METRIC_FISHER, METRIC_OUTPUT, METRIC_ATTENTION, METRIC_QUERY};

    for (size_t i = 0; i < sizeof(in_order) / sizeof(in_order[0]); i++)
        if (metric_available(s, in_order[i], NULL) == 0)
            return in_order[i];
    return METRIC_MSE;
}

/* The options that the active table was solved with, as far as its provenance has them and moments allow
 * them. Return: 0; -EINVAL: --stats lacks the metric. */
static int cmd_recalibrate_choose_options(const struct recalibration *x, struct solve_options *o,
                                          struct errmsg *e)
{
    uint8_t ignored[DIGEST_BYTES];

    if (solve_options_read(x->parsed->provenance, o, ignored, NULL) < 0 || o->method != METHOD_BANDS) {
        solve_options_default(o, x->parsed->bpd_code);
        o->metric = cmd_recalibrate_best_metric(x->stats);
    }

    if (!x->metric_stats) {
        o->metric = METRIC_MSE;
        o->depth_weights = false;
        o->temper = 0;
    }

    o->curve = CURVE_GAUSSIAN;
    o->fit_levels = false;
    o->levels_from = x->parsed;
    o->v_from = x->parsed->v_from == PREDICT_NONE ? PREDICT_NONE : PREDICT_HEAD;
    o->decoder = DECODER_INVERSE; /* fitting needs vectors */
    return metric_available(x->stats, o->metric, e);
}

static int cmd_recalibrate_solve(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct solve_report report;
    struct solve_options o;
    int r = cmd_recalibrate_choose_options(x, &o, e);

    if (r < 0)
        return r;

    x->metric = o.metric;
    r = moments_distortion(x->moments, x->stats, &o, x->table, x->n_table, DRAWN_TOKENS, x->distortion_active,
                           e);
    if (r < 0)
        return r;

    r = solve_table(x->stats, &o, &x->candidate, &x->n_candidate, &report, e);
    if (r < 0)
        return r;

    r = table_parse(x->candidate, x->n_candidate, &t, e);
    if (r < 0)
        return r;

    r = moments_distortion(x->moments, x->stats, &o, x->candidate, x->n_candidate, DRAWN_TOKENS,
                           x->distortion_new, e);
    if (r < 0)
        return r;

    if (x->o->output) {
        r = atomic_file_write(x->o->output, x->candidate, x->n_candidate, e);
        if (r < 0)
            return r;
    }

    memcpy(x->digest, t->digest, sizeof(x->digest));
    x->already = memcmp(x->digest, x->active, sizeof(x->digest)) == 0;
    return 0;
}

static double cmd_recalibrate_gain_percent(const struct recalibration *x)
{
    double before = x->distortion_active[0] + x->distortion_active[1],
           after = x->distortion_new[0] + x->distortion_new[1];

    return before > 0 ? 100 * (1 - after / before) : 0;
}

/* ---- shadow measurement ---- */

static int cmd_recalibrate_read_fit(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(freep) kvc_layer_fit *layers = NULL;
    size_t n;
    int r;

    x->fit.struct_bytes = sizeof(x->fit);
    r = kvc_table_get_fit(x->c, x->digest, &x->fit, sizeof(*layers), &layers, &n);
    return r < 0 ? fail(e, r, "%s", kvc_last_error(x->c)) : 0;
}

/* Return: 0: enough tokens are measured; -ETIMEDOUT. */
static int cmd_recalibrate_shadow(struct recalibration *x, struct errmsg *e)
{
    const struct recalibrate_options *o = x->o;
    const struct timespec pause_time = {0, SHADOW_POLL_MS * 1000000L};
    uint64_t n_pauses = o->wait_s * 1000 / SHADOW_POLL_MS;
    int r = kvc_table_shadow(x->c, x->digest, (uint32_t) fmax(1, o->share * 1e4), 0, NULL);

    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(x->c));

    command_note(&o->operator.common,
                 "clients encode %g %% of their new chunks with both tables until %ju tokens are measured",
                 o->share, (uintmax_t) o->shadow_tokens);
    do {
        r = cmd_recalibrate_read_fit(x, e);
        if (r < 0 || x->fit.shadow_tokens >= o->shadow_tokens)
            break;

        (void) nanosleep(&pause_time, NULL);
    } while (n_pauses-- > 0);
    if (r == 0 && x->fit.shadow_tokens < o->shadow_tokens)
        r = fail(e, -ETIMEDOUT, "%ju of %ju tokens were measured within %ju s",
                 (uintmax_t) x->fit.shadow_tokens, (uintmax_t) o->shadow_tokens, (uintmax_t) o->wait_s);
    return r;
}

static bool cmd_recalibrate_is_worse_live(const struct recalibration *x)
{
    const kvc_fit *f = &x->fit;

    return f->shadow_error[0] + f->shadow_error[1] >
           (f->active_error[0] + f->active_error[1]) * (1 + x->o->margin / 100);
}

/* ---- the result ---- */

static int cmd_recalibrate_print_result(const struct recalibration *x, const char *outcome, const char *why,
                                        int status)
{
    char active[DIGEST_HEX_BYTES], new[DIGEST_HEX_BYTES];

    (void) digest_hex(x->active, active);
    (void) digest_hex(x->digest, new);
    if (x->o->operator.common.json) {
        int r = report_json(
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:f, s:I, s:f, s:f, s:I}", "outcome", outcome,
                      "reason", why, "active", active, "table", new, "metric", solve_metric_name(x->metric),
                      "tokens", (json_int_t) x->tokens, "harm_active",
                      json_pack("[f, f]", x->distortion_active[0], x->distortion_active[1]), "harm_new",
                      json_pack("[f, f]", x->distortion_new[0], x->distortion_new[1]), "gain_percent",
                      cmd_recalibrate_gain_percent(x), "shadow_tokens", (json_int_t) x->fit.shadow_tokens,
                      "shadow_error", x->fit.shadow_error[0] + x->fit.shadow_error[1], "active_error",
                      x->fit.active_error[0] + x->fit.active_error[1], "revision", (json_int_t) x->revision));

        return r == COMMAND_OK ? status : r;
    }

    printf("distortion e'Me (%s) by the moments of %ju live tokens, keys + values:\n",
           solve_metric_name(x->metric), (uintmax_t) x->tokens);
    printf("  active  %.12s  %.6g + %.6g\n", active, x->distortion_active[0], x->distortion_active[1]);
    printf("  new     %.12s  %.6g + %.6g: %.1f %% lower\n", new, x->distortion_new[0], x->distortion_new[1],
           cmd_recalibrate_gain_percent(x));
    if (x->fit.shadow_tokens > 0)
        printf("measured error on %ju tokens: active %.4f + %.4f, new %.4f + %.4f\n",
               (uintmax_t) x->fit.shadow_tokens, x->fit.active_error[0], x->fit.active_error[1],
               x->fit.shadow_error[0], x->fit.shadow_error[1]);
    printf("%s: %s\n", outcome, why);
    return status;
}

/* Stages the new table, measures it as a shadow if asked for, and activates it. */
static int cmd_recalibrate_apply(struct recalibration *x)
{
    char hex[DIGEST_HEX_BYTES], why[512];
    struct errmsg e = {""};
    uint8_t staged[KVC_DIGEST_BYTES];

    if (!operator_confirm(
            &x->o->operator,
            "Table %.12s has a distortion %.1f %% lower on live traffic. New sequences will use it%s.",
            digest_hex(x->digest, hex), cmd_recalibrate_gain_percent(x),
            x->o->shadow_tokens > 0 ? " if the shadow measurement confirms that" : ""))
        return COMMAND_FAILED;
    if (kvc_table_stage(x->c, x->candidate, x->n_candidate, staged) < 0)
        return command_fail("cannot stage the new table: %s", kvc_last_error(x->c));
    if (x->o->shadow_tokens > 0) {
        int r = cmd_recalibrate_shadow(x, &e);

        (void) kvc_table_shadow(x->c, x->digest, 0, 0, NULL); /* end the shadow in any case */
        if (r < 0)
            return command_fail("%s; the active table stays, the new one is staged", e.text);
        if (cmd_recalibrate_is_worse_live(x))
            return cmd_recalibrate_print_result(
                x, "not activated", "its measured error on live chunks is above the active table's",
                NOT_BETTER);
    }

    if (kvc_table_activate(x->c, x->digest, 0, &x->revision) < 0)
        return command_fail("cannot activate the new table: %s", kvc_last_error(x->c));

    (void) snprintf(
        why, sizeof(why),
        "new sequences use it, revision %ju; 'kvcobra table rollback' returns to the earlier table",
        (uintmax_t) x->revision);
    return cmd_recalibrate_print_result(x, "activated", why, COMMAND_OK);
}

static int cmd_recalibrate_decide(struct recalibration *x)
{
    struct errmsg e = {""};
    char why[256];

    if (cmd_recalibrate_find_active(x, &e) < 0 || cmd_recalibrate_fetch_moments(x, &e) < 0)
        return command_fail("%s", e.text);
    if (x->tokens < x->o->min_tokens)
        return command_fail("%ju tokens were reported, %ju are needed (--min-tokens)", (uintmax_t) x->tokens,
                            (uintmax_t) x->o->min_tokens);
    if (cmd_recalibrate_solve(x, &e) < 0)
        return command_fail("%s", e.text);
    if (x->already)
        return cmd_recalibrate_print_result(x, "unchanged", "these moments give the active table",
                                            COMMAND_OK);
    if (!(cmd_recalibrate_gain_percent(x) >= x->o->margin)) {
        (void) snprintf(why, sizeof(why),
                        "a distortion %.1f %% lower is below the margin of %g %%; the active table stays",
                        cmd_recalibrate_gain_percent(x), x->o->margin);
        return cmd_recalibrate_print_result(x, "not activated", why, NOT_BETTER);
    }

    if (x->o->dry_run)
        return cmd_recalibrate_print_result(x, "would be activated",
                                            "better by the margin; --dry-run changed nothing", COMMAND_OK);

    return cmd_recalibrate_apply(x);
}

static int cmd_recalibrate_request(kvc_client *c, void *ctx)
{
    _cleanup_(cmd_recalibrate_deinit) struct recalibration x = {.c = c, .o = ctx};

    return cmd_recalibrate_decide(&x);
}

static int cmd_recalibrate_run(int argc, char **argv)
{
    struct recalibrate_options o = {.margin = 5, .share = 1, .min_tokens = 4096, .wait_s = 3600};
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (o.output && output_check(o.output, &o.stats, 1, &e) < 0)
        return command_fail("%s", e.text);

    return operator_run(&o.operator, cmd_recalibrate_request, &o);
}

const struct command cmd_recalibrate = {
    "recalibrate", "solve a table from live traffic, activate it if better", cmd_recalibrate_run};
