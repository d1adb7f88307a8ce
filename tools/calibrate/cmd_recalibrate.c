/*
 * kvcobra recalibrate: makes a new table for a running daemon from the moments that its clients report of
 * live traffic, and activates it only if it is better on that traffic. See recalibrate.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_moments.h"
#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/calibrate/recalibrate.h"
#include "tools/command/command.h"
#include "tools/command/interrupt.h"
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
    OPT_DRY,
    OPT_STAGE,
    OPT_CANARY,
    OPT_CANARY_SHARE,
    OPT_TABLE
};

#define NOT_BETTER 3 /* exit status: the active table stays; the reason is on stdout */

static const char doc[] =
    "Make a new table from the second moments of live traffic, which the clients of a daemon report "
    "(kvc_model_report(); kvcobrad needs moments-bytes). Both tables are compared on vectors drawn with "
    "these "
    "moments, and the new one is activated if its distortion is lower by the margin.\vStage 'refit' fits the "
    "active table's means, scales, prediction of values and decoders again, and its bits and bases stay: "
    "that "
    "is where a table loses most on other text, and it needs nothing but the moments. Stage 'solve' makes a "
    "table with the budgets, metric and levels of the active one; of a table that predicts values from all "
    "heads of a layer it makes one that predicts them from their own head. 'auto' compares both, and only "
    "refits if the metric of the active table is missing. Below 50000 tokens of traffic there is no 'solve', "
    "and "
    "'refit' moves everything half way from the active table to what the moments ask for: an hour of one "
    "kind of "
    "text is not the traffic to come.\n\n"
    "The metric is squared error, or with --stats that "
    "of the statistics that the active table was solved from. With --shadow-tokens clients first encode that "
    "many tokens with both tables; the new one is activated only if its measured error, keys plus values, "
    "exceeds the active table's by no more than the margin. With --canary-tokens a share of new sequences "
    "then uses it, until clients measured that many tokens of each of the two tables; if the error of the "
    "new table then exceeds that of the active table by more than the margin, new sequences use the active "
    "table only, as before. With --table a table that exists is tried in this way: none is made, and no "
    "moments "
    "are needed.\n\n"
    "The reports of clients are not verified: use --tenant to select trusted tenants.\n\n"
    "Exit status: 0 activated (with --dry-run: would be activated), or the solved table is already active; 1 "
    "failure, nothing was activated; 2 wrong usage; 3 not better, the active table stays.\n\n"
    "Examples:\n\n"
    "  kvcobra recalibrate --stats model.stats --dry-run\n"
    "  kvcobra recalibrate --shadow-tokens 65536 --canary-tokens 65536\n"
    "  kvcobra recalibrate --table other.table --canary-tokens 65536";

static const struct argp_option options[] = {
    {"stats", OPT_STATS, "FILE", 0, "Statistics of a calibration, for the metric", 1},
    {"model", OPT_MODEL, "MODEL-ID", 0,
     "At least the first six digits of the model's digest; needed if several models have active tables", 1},
    {"tenant", OPT_TENANT, "TENANT", 0, "Use only reports of this tenant; may be repeated", 1},
    {"stage", OPT_STAGE, "auto|refit|solve", 0, "What is made anew (default auto)", 1},
    {"table", OPT_TABLE, "FILE", 0, "Try this table instead of making one; needs a shadow or a canary", 1},
    {"margin", OPT_MARGIN, "PERCENT", 0,
     "Reduction of the distortion that the new table must reach (default 5)", 2},
    {"min-tokens", OPT_TOKENS, "N", 0, "Fail if fewer tokens were reported (default 4096)", 2},
    {"shadow-tokens", OPT_SHADOW, "N", 0,
     "Measure the error of both tables on N live tokens before activating (default 0: do not measure)", 2},
    {"share", OPT_SHARE, "PERCENT", 0, "With --shadow-tokens: share of new chunks to measure (default 1)", 2},
    {"wait", OPT_WAIT, "SECONDS", 0,
     "With --shadow-tokens or --canary-tokens: fail after this time (default 3600)", 2},
    {"canary-tokens", OPT_CANARY, "N", 0,
     "Use the new table for a share of new sequences, and measure N tokens of each table, before activating "
     "(default 0: no canary)",
     2},
    {"canary-share", OPT_CANARY_SHARE, "PERCENT", 0,
     "With --canary-tokens: share of new sequences, below 100 (default 10)", 2},
    {"output", 'o', "PATH", 0, "Also write the new table to this file", 3},
    {"dry-run", OPT_DRY, NULL, 0, "Print the result and do not change the daemon", 3},
    {0},
};

static const char *const stage_names[] = {
    [STAGE_AUTO] = "auto", [STAGE_REFIT] = "refit", [STAGE_SOLVE] = "solve", [STAGE_GIVEN] = "given"};

static void cmd_recalibrate_set_stage(const struct argp_state *state, struct recalibrate_options *o,
                                      const char *arg)
{
    for (size_t i = 0; i < STAGE_GIVEN; i++)
        if (strcmp(arg, stage_names[i]) == 0) {
            o->stage = (enum recalibrate_stage) i;
            return;
        }
    argp_error(state, "--stage is auto, refit or solve, not '%s'", arg);
}

static void cmd_recalibrate_check(const struct argp_state *state, const struct recalibrate_options *o)
{
    if (o->shadow_tokens > 0 && o->share <= 0)
        argp_error(state, "--shadow-tokens needs a --share above 0");
    if (o->table && (o->stage != STAGE_AUTO || o->stats || o->tenants.n > 0 || o->output || o->dry_run ||
                     o->has_min_tokens))
        argp_error(state, "--table is tried as it is: --stage, --stats, --tenant, --output, --dry-run and "
                          "--min-tokens are for tables that are made");
    if (o->table && o->shadow_tokens == 0 && o->canary_tokens == 0)
        argp_error(state, "--table needs --shadow-tokens or --canary-tokens; 'kvcobra table activate' "
                          "activates a table without a trial");
}

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
    case OPT_TABLE:
        o->table = arg;
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
        o->has_min_tokens = true;
        return 0;
    case OPT_SHADOW:
        o->shadow_tokens = option_uint(state, "--shadow-tokens", arg, 0, UINT64_MAX);
        return 0;
    case OPT_WAIT:
        o->wait_s = option_uint(state, "--wait", arg, 1, 1000000);
        return 0;
    case OPT_STAGE:
        cmd_recalibrate_set_stage(state, o, arg);
        return 0;
    case OPT_CANARY:
        o->canary_tokens = option_uint(state, "--canary-tokens", arg, 0, UINT64_MAX);
        return 0;
    case OPT_CANARY_SHARE:
        o->canary_share = option_double(state, "--canary-share", arg, 0.1, 99.6);
        return 0;
    case OPT_DRY:
        o->dry_run = true;
        return 0;
    case ARGP_KEY_END:
        cmd_recalibrate_check(state, o);
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
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    size_t found = 0;
    int r = operator_list_tables(x->c, &list, e);

    if (r < 0)
        return r;

    for (size_t i = 0; i < list->n_tables; i++) {
        const Kvcobra__TableInfo *t = list->tables[i];

        if (t->state != KVCOBRA__TABLE_STATE__TABLE_ACTIVE || t->exact != 0)
            continue;
        if (x->o->model && !operator_digest_matches(t->model_digest.data, x->o->model))
            continue;

        memcpy(x->active, t->digest.data, sizeof(x->active));
        memcpy(x->model, t->model_digest.data, sizeof(x->model));
        found++;
    }

    if (found != 1)
        return fail(e, -EINVAL,
                    found == 0 ? "the daemon has no active table%s"
                               : "several models have active tables%s: choose one with --model",
                    x->o->model ? " of this model" : "");

    r = operator_fetch_table(x->c, x->active, &x->table, &x->n_table, e);
    return r < 0 ? r : table_parse(x->table, x->n_table, &x->parsed, e);
}

static int cmd_recalibrate_fetch_moments(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n;
    int r =
        operator_fetch_moments(x->c, x->model, x->tenants.names, x->o->tenants.n, &bytes, &n, &x->tokens, e);

    if (r == 0)
        r = moments_parse(bytes, n, &x->moments, e);
    if (r == 0 && x->o->stats)
        r = stats_load(x->o->stats, &x->metric_stats, e);
    return r < 0 ? r : stats_from_moments(x->moments, x->metric_stats, &x->stats, e);
}

/* The candidate is the file of --table. */
static int cmd_recalibrate_load_given(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct errmsg why = {""};
    int r = atomic_file_read(x->o->table, TABLE_FILE_BYTES_MAX, &x->candidate, &x->n_candidate, e);

    if (r < 0)
        return r;

    r = table_parse(x->candidate, x->n_candidate, &t, &why);
    if (r < 0)
        return fail(e, r, "%s: %s", x->o->table, why.text);
    if (memcmp(t->model_digest, x->parsed->model_digest, sizeof(t->model_digest)) != 0)
        return fail(e, -EINVAL, "%s is for another model than the active table", x->o->table);

    memcpy(x->digest, t->digest, sizeof(x->digest));
    x->stage = STAGE_GIVEN;
    x->already = memcmp(x->digest, x->active, sizeof(x->digest)) == 0;
    return 0;
}

/* ---- the result ---- */

static double cmd_recalibrate_gain_percent(const struct recalibration *x)
{
    double before = x->distortion_active[0] + x->distortion_active[1],
           after = x->distortion_new[0] + x->distortion_new[1];

    return before > 0 ? 100 * (1 - after / before) : 0;
}

static bool cmd_recalibrate_is_worse_live(const struct recalibration *x)
{
    const Kvcobra__Fit *f = &x->fit;

    return f->shadow_error_k + f->shadow_error_v >
           (f->active_error_k + f->active_error_v) * (1 + x->o->margin / 100);
}

static void cmd_recalibrate_print_distortion(const struct recalibration *x, const char *active,
                                             const char *new)
{
    printf("distortion e'Me (%s) by the moments of %ju live tokens, keys + values:\n",
           solve_metric_name(x->metric), (uintmax_t) x->tokens);
    printf("  active  %.12s  %.6g + %.6g\n", active, x->distortion_active[0], x->distortion_active[1]);
    printf("  %s  %.12s  %.6g + %.6g: %.1f %% lower\n", x->stage == STAGE_REFIT ? "refitted" : "solved", new,
           x->distortion_new[0], x->distortion_new[1], cmd_recalibrate_gain_percent(x));
    if (x->moved < 1)
        printf("  moved half way from the active table: these are fewer than %d tokens\n",
               RECALIBRATE_WHOLE_TOKENS);
}

/* What a table of --table does not have, since nothing was solved, is null. */
static json_t *cmd_recalibrate_solved_json(const struct recalibration *x, json_t *value)
{
    if (x->stage != STAGE_GIVEN)
        return value;
    json_decref(value);
    return json_null();
}

static int cmd_recalibrate_print_result(const struct recalibration *x, const char *outcome, const char *why,
                                        int status)
{
    char active[DIGEST_HEX_BYTES], new[DIGEST_HEX_BYTES];

    (void) digest_hex(x->active, active);
    (void) digest_hex(x->digest, new);
    if (x->o->operator.common.json) {
        int r = report_json(json_pack(
            "{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:f, s:f, s:I, s:f, s:f, s:I}",
            "outcome", outcome, "reason", why, "stage", stage_names[x->stage], "active", active, "table", new,
            "metric", cmd_recalibrate_solved_json(x, json_string(solve_metric_name(x->metric))), "tokens",
            cmd_recalibrate_solved_json(x, json_integer((json_int_t) x->tokens)), "moved",
            cmd_recalibrate_solved_json(x, json_real(x->moved)), "distortion_active",
            cmd_recalibrate_solved_json(
                x, json_pack("[f, f]", x->distortion_active[0], x->distortion_active[1])),
            "distortion_new",
            cmd_recalibrate_solved_json(x, json_pack("[f, f]", x->distortion_new[0], x->distortion_new[1])),
            "gain_percent", cmd_recalibrate_solved_json(x, json_real(cmd_recalibrate_gain_percent(x))),
            "shadow_tokens", (json_int_t) x->fit.shadow_tokens, "shadow_error",
            x->fit.shadow_error_k + x->fit.shadow_error_v, "active_error",
            x->fit.active_error_k + x->fit.active_error_v, "canary_tokens", (json_int_t) x->canary_tokens,
            "canary_error", x->canary_error, "canary_active_error", x->canary_active_error, "revision",
            (json_int_t) x->revision));

        return r == COMMAND_OK ? status : r;
    }

    if (x->stage != STAGE_GIVEN)
        cmd_recalibrate_print_distortion(x, active, new);
    if (x->fit.shadow_tokens > 0)
        printf("measured error on %ju tokens: active %.4f + %.4f, new %.4f + %.4f\n",
               (uintmax_t) x->fit.shadow_tokens, x->fit.active_error_k, x->fit.active_error_v,
               x->fit.shadow_error_k, x->fit.shadow_error_v);
    if (x->canary_tokens > 0)
        printf("measured error of the canary, %ju tokens: %.4f; of the active table meanwhile: %.4f\n",
               (uintmax_t) x->canary_tokens, x->canary_error, x->canary_active_error);
    printf("%s: %s\n", outcome, why);
    return status;
}

static bool cmd_recalibrate_confirm(const struct recalibration *x, const char *hex)
{
    if (x->stage == STAGE_GIVEN)
        return operator_confirm(&x->o->operator,
                                "New sequences will use table %.12s if measurements on live traffic do not "
                                "show a larger error.",
                                hex);
    return operator_confirm(
        &x->o->operator,
        "Table %.12s has a distortion %.1f %% lower on live traffic. New sequences will use it%s.", hex,
        cmd_recalibrate_gain_percent(x),
        x->o->shadow_tokens + x->o->canary_tokens > 0 ? " if measurements confirm that" : "");
}

/* Stages the new table, measures it as a shadow if asked for, and activates it. */
static int cmd_recalibrate_apply(struct recalibration *x)
{
    char hex[DIGEST_HEX_BYTES], why[512];
    struct errmsg e = {""};
    uint8_t staged[KVC_DIGEST_BYTES];

    if (!cmd_recalibrate_confirm(x, digest_hex(x->digest, hex)))
        return COMMAND_FAILED;
    interrupt_watch(); /* a stop ends trials too */
    if (operator_stage_table(x->c, x->candidate, x->n_candidate, staged, &e) < 0)
        return command_fail("cannot stage the new table: %s", e.text);
    if (x->o->shadow_tokens > 0) {
        if (recalibrate_shadow(x, &e) < 0)
            return command_fail("%s; the active table stays, the new one is staged", e.text);
        if (cmd_recalibrate_is_worse_live(x))
            return cmd_recalibrate_print_result(
                x, "not activated", "its measured error on live chunks is above the active table's",
                NOT_BETTER);
    }

    if (x->o->canary_tokens > 0) {
        int r = recalibrate_canary(x, &e);

        if (r < 0)
            return command_fail("%s; the canary has ended, the active table stays", e.text);
        if (r > 0)
            return cmd_recalibrate_print_result(
                x, "rolled back",
                "the canary's measured error is above the active table's; new sequences use "
                "the active table only",
                NOT_BETTER);
    }

    if (operator_activate_table(x->c, x->digest, 0, &x->revision, &e) < 0)
        return command_fail("cannot activate the new table: %s", e.text);

    (void) snprintf(
        why, sizeof(why),
        "new sequences use it, revision %ju; 'kvcobra table rollback %.12s' returns to the earlier table",
        (uintmax_t) x->revision, hex);
    return cmd_recalibrate_print_result(x, "activated", why, COMMAND_OK);
}

static int cmd_recalibrate_decide(struct recalibration *x)
{
    struct errmsg e = {""};
    char why[256];
    int code = tenant_names_find(x->c, &x->o->tenants, &x->tenants);

    if (code != COMMAND_OK)
        return code;
    if (cmd_recalibrate_find_active(x, &e) < 0)
        return command_fail("%s", e.text);
    if (x->o->table && cmd_recalibrate_load_given(x, &e) < 0)
        return command_fail("%s", e.text);
    if (x->o->table)
        return x->already ? cmd_recalibrate_print_result(x, "unchanged", "this table is active", COMMAND_OK)
                          : cmd_recalibrate_apply(x);
    if (cmd_recalibrate_fetch_moments(x, &e) < 0)
        return command_fail("%s", e.text);
    if (x->tokens < x->o->min_tokens)
        return command_fail("%ju tokens were reported, %ju are needed (--min-tokens)", (uintmax_t) x->tokens,
                            (uintmax_t) x->o->min_tokens);
    if (recalibrate_solve(x, &e) < 0)
        return command_fail("%s", e.text);
    if (x->already)
        return cmd_recalibrate_print_result(
            x, "unchanged", "the active table was made from these moments already", COMMAND_OK);
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
    struct recalibrate_options o = {
        .margin = 5, .share = 1, .canary_share = 10, .min_tokens = 4096, .wait_s = 3600};
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (o.output && output_check(o.output, &o.stats, 1, &e) < 0)
        return command_fail("%s", e.text);

    return operator_run(&o.operator, cmd_recalibrate_request, &o);
}

COMMAND(cmd_recalibrate) = {
    .name = "recalibrate",
    .summary = "solve a table from live traffic, activate it if better",
    .run = cmd_recalibrate_run,
    .rank = 110,
    .related = "solve table",
};
