/*
 * kvcobra table list|stage|fetch|shadow|canary|activate|rollback|retire: the tables of a running daemon. The
 * socket is the operator socket. Changes that clients notice are confirmed first.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "proto/protocol.h"
#include "tools/command/operator.h"
#include "tools/command/operator_tables.h"
#include "tools/command/option.h"
#include "tools/command/report.h"
#include "tools/command/tenant_name.h"
#include "tools/operate/table_check.h"
#include "tools/operate/table_fetch.h"
#include "tools/operate/table_list.h"

enum { OPT_REVISION = 1, OPT_SHARE, OPT_TENANT, OPT_OUTPUT = 'o' };

struct table_options;

/* An action, with the arguments it takes, and the help of this action alone. */
struct table_action {
    const char *name;
    int (*run)(kvc_client *c, const struct table_options *o);
    bool takes_table, takes_share, takes_tenant, takes_revision, takes_output;
    bool takes_tables;     /* several */
    const char *arguments; /* as its usage line shows them */
    const char *doc;
};

struct table_options {
    struct operator_options operator;
    const struct table_action *action;
    const char *table; /* the first argument TABLE or FILE; NULL: not given */
    const char *tables[WIRE_TABLES_MAX];
    size_t n_tables;
    const char *output; /* NULL: not given */
    uint64_t revision;
    double share; /* percent; negative: not given */
    struct operator_tenants tenants;
};

/* ---- actions ---- */

static int cmd_table_list(kvc_client *c, const struct table_options *o)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    struct errmsg e = {""};

    if (operator_list_tables(c, &list, &e) < 0)
        return command_fail("%s", e.text);
    return o->operator.common.json ? table_list_print_json(list) : table_list_print_text(list);
}

/* Appends to @json, or prints. */
static int cmd_table_stage_one(kvc_client *c, const char *path, json_t *json)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    int r = table_load(path, &t, &e); /* what is no table is not sent */

    if (r < 0)
        return command_fail("%s", e.text);

    r = operator_stage_table(c, t->bytes, t->n_bytes, digest, &e);
    if (r < 0)
        return command_fail("cannot stage %s: %s", path, e.text);

    (void) digest_hex(digest, hex);
    if (json)
        (void) json_array_append_new(json, json_pack("{s:s, s:b}", "digest", hex, "already", r > 0));
    else
        printf("%s %s\n", r > 0 ? "already staged:" : "staged", hex);
    return COMMAND_OK;
}

/* One table as an object, several as an array of them. Takes over @list. */
static int cmd_table_print_json(json_t *list)
{
    json_t *one = json_incref(json_array_size(list) == 1 ? json_array_get(list, 0) : list);

    json_decref(list);
    return report_json(one);
}

static int cmd_table_stage(kvc_client *c, const struct table_options *o)
{
    json_t *json = o->operator.common.json ? json_array() : NULL;
    int code = COMMAND_OK;

    for (size_t i = 0; code == COMMAND_OK && i < o->n_tables; i++)
        code = cmd_table_stage_one(c, o->tables[i], json);
    if (json && code == COMMAND_OK)
        return cmd_table_print_json(json);

    json_decref(json);
    return code;
}

static int cmd_table_fetch(kvc_client *c, const struct table_options *o)
{
    return table_fetch(c, o->table, o->output, o->operator.common.json);
}

static int cmd_table_activate(kvc_client *c, const struct table_options *o)
{
    uint8_t digests[WIRE_TABLES_MAX][KVC_DIGEST_BYTES];
    struct table_target targets[WIRE_TABLES_MAX];
    uint64_t revisions[WIRE_TABLES_MAX] = {0};
    struct errmsg e = {""};
    json_t *json;
    int r;

    for (size_t i = 0; i < o->n_tables; i++) {
        r = table_target_find(c, o->tables[i], &targets[i]);
        if (r != COMMAND_OK)
            return r;

        memcpy(digests[i], targets[i].digest, KVC_DIGEST_BYTES);
    }

    r = operator_activate_tables(c, digests, o->n_tables, o->revision, revisions, &e);
    if (r < 0)
        return command_fail("cannot activate %s%s: %s", o->table, o->n_tables > 1 ? " and the others" : "",
                            e.text);

    json = o->operator.common.json ? json_array() : NULL;
    for (size_t i = 0; i < o->n_tables; i++)
        if (json)
            (void) json_array_append_new(json,
                                         json_pack("{s:s, s:I, s:b}", "digest", targets[i].hex, "revision",
                                                   (json_int_t) revisions[i], "already", r > 0));
        else
            printf("%s %s, revision %ju\n", r > 0 ? "already active:" : "active", targets[i].hex,
                   (uintmax_t) revisions[i]);
    return json ? cmd_table_print_json(json) : COMMAND_OK;
}

/* Prints that a shadow or a canary was set or, with @ends, ended. @name: "shadow" or "canary"; @r > 0: no
 * change. */
static int cmd_table_print_trial(const struct table_options *o, const char *name, bool ends, const char *hex,
                                 uint64_t revision, int r)
{
    if (o->operator.common.json)
        return report_json(json_pack("{s:s, s:I, s:b, s:b}", "digest", hex, "revision", (json_int_t) revision,
                                     name, !ends, "already", r > 0));

    if (ends)
        printf("%s %s of table %s, revision %ju\n", r > 0 ? "there was no" : "ended the", name, hex,
               (uintmax_t) revision);
    else
        printf("%s%s %s, revision %ju\n", r > 0 ? "already " : "", name, hex, (uintmax_t) revision);
    return COMMAND_OK;
}

/* Percent as millionths, at least one. */
static uint32_t cmd_table_share_ppm(double percent)
{
    return (uint32_t) (percent * 1e4 + 0.5) + (percent < 5e-5);
}

static int cmd_table_shadow(kvc_client *c, const struct table_options *o)
{
    bool ends = o->share <= 0;
    struct table_target t;
    struct errmsg e = {""};
    uint64_t revision = 0;
    int r;

    r = table_target_find(c, o->table, &t);
    if (r == COMMAND_OK && !ends)
        r = table_check_change(c, TABLE_CHANGE_SHADOW, t.digest, o->table);
    if (r != COMMAND_OK)
        return r;

    if (!ends && !operator_confirm(&o->operator,
                                   "Clients of the model encode %g %% of their new chunks with table %.12s "
                                   "as well, and report both errors. Nothing is stored with that table.",
                                   o->share, t.hex))
        return COMMAND_FAILED;

    r = operator_shadow_table(c, t.digest, ends ? 0 : cmd_table_share_ppm(o->share), o->revision, &revision,
                              &e);
    if (r < 0)
        return command_fail("cannot make %s a shadow: %s", o->table, e.text);

    return cmd_table_print_trial(o, "shadow", ends, t.hex, revision, r);
}

/* Percent as parts of 256: at least one, below all. */
static uint32_t cmd_table_share_256(double percent)
{
    uint32_t share;

    if (percent <= 0)
        return 0;

    share = (uint32_t) (percent * 2.56 + 0.5);
    if (share == 0)
        return 1;

    return share > 255 ? 255 : share;
}

/* What the new sequences of a canary are: "10 of 256 new sequences, and all of 2 tenants". */
static bool cmd_table_confirm_canary(const struct table_options *o, uint32_t share, const char *hex)
{
    char some[64] = "", all[64] = "";

    if (share > 0)
        (void) snprintf(some, sizeof(some), "%u of 256 new sequences", share);
    if (o->tenants.n > 0)
        (void) snprintf(all, sizeof(all), "all new sequences of %zu tenant%s", o->tenants.n,
                        o->tenants.n == 1 ? "" : "s");
    return operator_confirm(&o->operator, "%s%s%s use table %.12s. They share no pages with the others.",
                            some, share > 0 && o->tenants.n > 0 ? ", and " : "", all, hex);
}

static int cmd_table_canary(kvc_client *c, const struct table_options *o)
{
    bool ends = o->share <= 0 && o->tenants.n == 0, confirmed;
    uint32_t share = cmd_table_share_256(o->share);
    struct tenant_names tenants;
    struct table_target t;
    struct errmsg e = {""};
    uint64_t revision = 0;
    int r;

    r = table_target_find(c, o->table, &t);
    if (r == COMMAND_OK)
        r = tenant_names_find(c, &o->tenants, &tenants);
    if (r == COMMAND_OK && !ends)
        r = table_check_change(c, TABLE_CHANGE_CANARY, t.digest, o->table);
    if (r != COMMAND_OK)
        return r;

    if (ends)
        confirmed = operator_confirm(
            &o->operator, "New sequences stop using table %.12s; it drains if it was used.", t.hex);
    else
        confirmed = cmd_table_confirm_canary(o, share, t.hex);
    if (!confirmed)
        return COMMAND_FAILED;

    r = operator_canary_table(c, t.digest, share, tenants.names, o->tenants.n, o->revision, &revision, &e);
    if (r < 0)
        return command_fail("cannot make %s a canary: %s", o->table, e.text);

    return cmd_table_print_trial(o, "canary", ends, t.hex, revision, r);
}

static int cmd_table_rollback(kvc_client *c, const struct table_options *o)
{
    _cleanup_(operator_message_freep) Kvcobra__RollbackTableReply *reply = NULL;
    Kvcobra__RollbackTable rollback = KVCOBRA__ROLLBACK_TABLE__INIT;
    char active_hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    struct table_target t;
    int r;

    r = table_target_find(c, o->table, &t);
    if (r == COMMAND_OK)
        r = table_check_change(c, TABLE_CHANGE_ROLLBACK, t.digest, o->table);
    if (r != COMMAND_OK)
        return r;

    if (!operator_confirm(&o->operator, "New sequences stop using table %.12s and use the table that was "
                                        "active before it. Running sequences keep their tables.",
                          t.hex))
        return COMMAND_FAILED;

    rollback.digest = operator_digest(t.digest);
    rollback.revision = o->revision;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE, &rollback.base, &reply, &e);
    if (r == 0)
        r = operator_check_is_digest(reply->active, "the active table", &e);
    if (r == 0)
        r = operator_outcome(reply->outcome, &e);
    if (r < 0)
        return command_fail("cannot roll back %s: %s", o->table, e.text);

    (void) digest_hex(reply->active.data, active_hex);
    if (o->operator.common.json)
        return report_json(json_pack("{s:s, s:s, s:I, s:b}", "left", t.hex, "active", active_hex, "revision",
                                     (json_int_t) reply->revision, "already", r > 0));

    printf("%s %s, revision %ju\n", r > 0 ? "no change, the table was not active; active is" : "active",
           active_hex, (uintmax_t) reply->revision);
    return COMMAND_OK;
}

static int cmd_table_retire(kvc_client *c, const struct table_options *o)
{
    _cleanup_(operator_message_freep) Kvcobra__RetireTableReply *reply = NULL;
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;
    struct table_target t;
    struct errmsg e = {""};
    int r;

    r = table_target_find(c, o->table, &t);
    if (r == COMMAND_OK)
        r = table_check_change(c, TABLE_CHANGE_RETIRE, t.digest, o->table);
    if (r != COMMAND_OK)
        return r;

    if (!operator_confirm(
            &o->operator,
            "Table %.12s takes no more pages and cannot become active by rollback. Its unheld pages are "
            "evicted first when memory is short, and all its pages when no sequence uses it.",
            t.hex))
        return COMMAND_FAILED;

    retire.digest = operator_digest(t.digest);
    retire.revision = o->revision;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &retire.base, &reply, &e);
    if (r == 0)
        r = operator_outcome(reply->outcome, &e);
    if (r < 0)
        return command_fail("cannot retire %s: %s", o->table, e.text);

    if (o->operator.common.json)
        return report_json(json_pack("{s:s, s:s, s:b}", "digest", t.hex, "state",
                                     operator_table_state(reply->state), "already", r > 0));

    printf("%s%s %s\n", r > 0 ? "already " : "", operator_table_state(reply->state), t.hex);
    return COMMAND_OK;
}

#define TABLE_IS                                                                                             \
    "TABLE is a table file, or at least the first six digits of the digest of a table that the daemon "      \
    "has.\n\n"

static const struct table_action actions[] = {
    {"list", cmd_table_list, false, false, false, false, false, false, "list",
     "Print the daemon's tables: their models, states and bits, the references of sessions, their pages, and "
     "the error that clients measured beside the expected one.\v"
     "Examples:\n\n"
     "  kvcobra table list\n"
     "  kvcobra table list --json"},
    {"stage", cmd_table_stage, true, false, false, false, false, true, "stage FILE...",
     "Send table files to the daemon, which verifies them and answers. No sequence uses a table until it is "
     "tried or activated.\v"
     "Example:\n\n"
     "  kvcobra table stage model-3.table"},
    {"fetch", cmd_table_fetch, true, false, false, false, true, false, "fetch DIGEST",
     "Write a table of the daemon to a file, by at least the first six digits of its digest. The file is "
     "verified before it gets its name. Clients may fetch tables too: with --socket and the path of the "
     "clients' socket. A table that retired is gone.\v"
     "Example:\n\n"
     "  kvcobra table fetch 651ed3 -o active.table"},
    {"shadow", cmd_table_shadow, true, true, false, true, false, false, "shadow TABLE",
     "Measure a table on live traffic without using it: clients encode --share percent of their new chunks "
     "with TABLE as well and report both errors, which 'kvcobra table list' prints. --share 0 ends "
     "it.\v" TABLE_IS "Example:\n\n"
     "  kvcobra table shadow model-2.table --share 5"},
    {"canary", cmd_table_canary, true, true, true, true, false, false, "canary TABLE",
     "Use a table that is not active for some new sequences: for --share percent of them, and for all of "
     "each "
     "--tenant. They share no pages with the others. --share 0 ends it.\v" TABLE_IS "Example:\n\n"
     "  kvcobra table canary model-2.table --share 10"},
    {"activate", cmd_table_activate, true, false, false, true, false, true, "activate TABLE...",
     "Use a table for all new sequences of its model. Running sequences keep the table that they began with, "
     "so no sequence is interrupted. Several tables, such as those of a model's groups of layers, change "
     "together: all, or none.\v" TABLE_IS "Example:\n\n"
     "  kvcobra table activate model-3.table"},
    {"rollback", cmd_table_rollback, true, false, false, true, false, false, "rollback TABLE",
     "Leave TABLE, which is active, and use the table that was active before it. This is possible while the "
     "earlier table drains: kvcobrad's drain-ms, 10 minutes by default.\v" TABLE_IS "Example:\n\n"
     "  kvcobra table rollback model-3.table"},
    {"retire", cmd_table_retire, true, false, false, true, false, false, "retire TABLE",
     "End the use of a table that is not active: it takes no new pages, and is removed when no sequence uses "
     "it.\v" TABLE_IS "Example:\n\n"
     "  kvcobra table retire model-2.table"},
};

#define ACTIONS "list, stage, fetch, shadow, canary, activate, rollback, retire"

/* ---- command line ---- */

static const char doc[] =
    "List the allocation tables of a daemon, add one, or change which one is in use.\v  list            "
    "print the daemon's tables and their states\n"
    "  stage FILE...   send table files; the daemon verifies them and answers\n"
    "  fetch DIGEST    write a table of the daemon to the file --output\n"
    "  shadow TABLE    clients encode --share percent of their new chunks with\n"
    "                  TABLE as well and report both errors, which list prints;\n"
    "                  --share 0 ends it\n"
    "  canary TABLE    --share percent of new sequences, and all new sequences\n"
    "                  of each --tenant, use TABLE; --share 0 ends it\n"
    "  activate TABLE...  new sequences use TABLE; several change together\n"
    "  rollback TABLE  new sequences use the table that was active before TABLE,\n"
    "                  which is active now\n"
    "  retire TABLE    no new pages for TABLE, which is not active; it is removed\n"
    "                  when no sequence uses it\n\n"
    "TABLE is a table file, or at least the first six digits of the digest of a table that the daemon "
    "has.\n\n"
    "A sequence uses one table from beginning to end, so a change interrupts no sequence.\n\n"
    "Example:\n\n"
    "  kvcobra table stage model-3.table\n"
    "  kvcobra table activate model-3.table";

static const struct argp_option options[] = {
    {"revision", OPT_REVISION, "N", 0,
     "For shadow, canary, activate, rollback: fail unless N is above the daemon's revision (default: the "
     "next one). For retire: fail if the daemon's revision is above N",
     1},
    {"share", OPT_SHARE, "PERCENT", 0,
     "For shadow: share of new chunks. For canary: share of new sequences, in steps of 1/256, below 100. 0 "
     "ends the trial",
     1},
    {"tenant", OPT_TENANT, "TENANT", 0,
     "For canary: all new sequences of this tenant, or user, use TABLE; may be repeated", 1},
    {"output", OPT_OUTPUT, "FILE", 0, "For fetch: the file to write (required)", 1},
    {0},
};

static const struct table_action *cmd_table_action_named(const char *name)
{
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(name, actions[i].name) == 0)
            return &actions[i];
    return NULL;
}

static void cmd_table_check(const struct table_options *o, const struct argp_state *state)
{
    const struct table_action *a = o->action;

    if (!a) {
        argp_error(state, "one of " ACTIONS " is needed");
        return;
    }

    if (!a->takes_table && o->table)
        argp_error(state, "%s takes no argument", a->name);
    if (a->takes_table && !o->table)
        argp_error(state, "%s needs a table", a->name);
    if (!a->takes_share && o->share >= 0)
        argp_error(state, "--share is for shadow and canary");
    if (!a->takes_tenant && o->tenants.n > 0)
        argp_error(state, "--tenant is for canary");
    if (a->takes_output != (o->output != NULL))
        argp_error(state, a->takes_output ? "%s needs --output" : "%s takes no --output", a->name);
    if (a->takes_share && !a->takes_tenant && o->share < 0)
        argp_error(state, "shadow needs --share");
    if (a->takes_tenant && o->share < 0 && o->tenants.n == 0)
        argp_error(state, "canary needs --share or --tenant");
    if (o->n_tables > 1 && o->revision > 0)
        argp_error(state, "--revision is for one table");
    if (a->takes_tenant && o->share >= 100)
        argp_error(state, "--share %g: a canary must be below 100; use activate for all new sequences",
                   o->share);
}

static void cmd_table_take_argument(struct table_options *o, const char *arg, const struct argp_state *state)
{
    if (!o->action) {
        o->action = cmd_table_action_named(arg);
        if (!o->action)
            option_unknown(state, arg, ACTIONS);
        return;
    }

    if (o->n_tables > 0 && !o->action->takes_tables)
        argp_error(state, "'%s' is one argument too many", arg);
    if (o->n_tables == WIRE_TABLES_MAX)
        argp_error(state, "more than %d tables", WIRE_TABLES_MAX);
    if (o->n_tables == 0)
        o->table = arg;
    o->tables[o->n_tables++] = arg;
}

static error_t cmd_table_parse(int key, char *arg, struct argp_state *state)
{
    struct table_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_REVISION:
        o->revision = option_uint(state, "--revision", arg, 1, ((uint64_t) 1 << 40) - 1);
        return 0;
    case OPT_SHARE:
        o->share = option_double(state, "--share", arg, 0, 100);
        return 0;
    case OPT_TENANT:
        operator_add_tenant(state, &o->tenants, arg);
        return 0;
    case OPT_OUTPUT:
        o->output = arg;
        return 0;
    case ARGP_KEY_ARG:
        cmd_table_take_argument(o, arg, state);
        return 0;
    case ARGP_KEY_END:
        cmd_table_check(o, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

/* The arguments of all actions, a line each. */
static const char *cmd_table_arguments(void)
{
    static char text[256];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        n += (size_t) snprintf(text + n, sizeof(text) - n, "%s%s", i > 0 ? "\n" : "", actions[i].arguments);
    assert(n < sizeof(text));
    return text;
}

/* Whether an action takes the option @key. */
static bool cmd_table_takes(const struct table_action *a, int key)
{
    switch (key) {
    case OPT_REVISION:
        return a->takes_revision;
    case OPT_SHARE:
        return a->takes_share;
    case OPT_TENANT:
        return a->takes_tenant;
    case OPT_OUTPUT:
        return a->takes_output;
    }
    return false;
}

/* `kvcobra table ACTION --help`: the help of this action, with its options. */
static void cmd_table_print_help(const struct table_action *a, int argc, char **argv, struct table_options *o)
{
    struct argp_option some[sizeof(options) / sizeof(options[0])] = {{0}};
    struct argp one = {some, cmd_table_parse, a->arguments, a->doc, operator_children, NULL, NULL};
    size_t n = 0;

    for (size_t i = 0; options[i].name; i++)
        if (cmd_table_takes(a, options[i].key))
            some[n++] = options[i];
    if (n == 0) /* glibc does not free what it makes of an empty list */
        one.options = NULL;
    command_parse(&one, argc, argv, o);
}

static int cmd_table_request(kvc_client *c, void *ctx)
{
    const struct table_options *o = ctx;

    return o->action->run(c, o);
}

static int cmd_table_run(int argc, char **argv)
{
    const struct argp argp = {options, cmd_table_parse, cmd_table_arguments(), doc, operator_children, NULL,
                              NULL};
    struct table_options o = {.share = -1};
    const struct table_action *asked = argc == 3 ? cmd_table_action_named(argv[1]) : NULL;

    if (asked && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-?") == 0))
        cmd_table_print_help(asked, argc, argv, &o); /* exits */
    command_parse(&argp, argc, argv, &o);
    o.operator.may_be_own = o.action->run == cmd_table_list;
    return operator_run(&o.operator, cmd_table_request, &o);
}

COMMAND(cmd_table) = {
    .name = "table",
    .summary = "list, stage, fetch, try, activate and retire a daemon's tables",
    .run = cmd_table_run,
    .rank = 80,
    .related = "solve recalibrate model",
};
