/*
 * kvcobra table list|stage|shadow|canary|activate|rollback|retire: the tables of a running daemon. Changes
 * need the operator socket; what its clients would notice is said first and asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "client/kvcobra-operator.h"
#include "tools/command/command.h"
#include "tools/command/confirm.h"
#include "tools/command/handles.h"
#include "tools/command/report.h"

enum { OPT_SOCKET = 1, OPT_REVISION, OPT_YES, OPT_SHARE, OPT_TENANT };

enum { TENANTS_MAX = 64 };
enum { SHORT_DIGITS_MIN = 6 }; /* of a digest typed by a person; fewer tell too little apart */

struct table_options {
    struct common_options common;
    const char *action, *what, *socket;
    uint64_t revision;
    double share; /* percent; negative: not given */
    const char *tenants[TENANTS_MAX];
    size_t n_tenants;
    bool yes;
};

static const char doc[] =
    "Look at the allocation tables of a daemon, hand it a new one, or change the one in use.\v"
    "  list            every table that the daemon knows, and its state\n"
    "  stage FILE      give it a table file; the daemon verifies it before it answers\n"
    "  shadow TABLE    clients encode --share percent of their new chunks with TABLE too, which is not in "
    "use, and report "
    "the errors of both, which list shows; --share 0 ends it\n"
    "  canary TABLE    --share percent of new sequences, and all of each --tenant, use TABLE; --share 0 ends "
    "it\n"
    "  activate TABLE  new sequences use this one from now on; TABLE is a table file, a digest, or the first "
    "six "
    "or more digits of one that the daemon knows\n"
    "  rollback TABLE  leave TABLE, which is active, for the one that was active before it\n"
    "  retire TABLE    no more pages for TABLE, which is not active; it goes when nobody uses it\n\n"
    "Sequences keep the table they began with, so nothing stops and nothing is read wrongly.\n\n"
    "Example:\n\n"
    "  kvcobra table stage model-3.table --socket /run/kvcobra/operator.sock\n"
    "  kvcobra table activate model-3.table --socket /run/kvcobra/operator.sock";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0,
     "The daemon's socket; stage and activate need its operator socket (required)", 1},
    {"revision", OPT_REVISION, "N", 0,
     "shadow, canary, activate, rollback: refuse unless this is newer than the daemon's revision "
     "(default: the next one); retire: refuse if the daemon's is newer",
     1},
    {"share", OPT_SHARE, "PERCENT", 0,
     "shadow: of new chunks; canary: of new sequences (in steps of 1/256, below 100); "
     "0 = end",
     1},
    {"tenant", OPT_TENANT, "NAME", 0, "canary: all new sequences of this tenant; may be repeated", 1},
    {"yes", OPT_YES, NULL, 0, "shadow, canary, rollback, retire: do not ask", 1},
    {0},
};

#define ACTIONS "list, stage, shadow, canary, activate, rollback, retire"

static bool cmd_table_is_change(const char *action)
{
    static const char *const changes[] = {"stage", "shadow", "canary", "activate", "rollback", "retire"};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        if (strcmp(action, changes[i]) == 0)
            return true;
    return false;
}

static void cmd_table_check(const struct table_options *o, const struct argp_state *state)
{
    if (!o->action)
        argp_error(state, "one of " ACTIONS " is needed");
    if (!o->socket)
        argp_error(state, "--socket is needed");
    if (strcmp(o->action, "list") == 0) {
        if (o->what)
            argp_error(state, "list takes no argument");
    } else if (!cmd_table_is_change(o->action)) {
        argp_error(state, "'%s' is none of " ACTIONS, o->action);
    } else if (!o->what) {
        argp_error(state, "%s needs a table", o->action);
    } else if (strcmp(o->action, "canary") == 0) {
        if (o->share < 0 && o->n_tenants == 0)
            argp_error(state, "canary needs --share or --tenant");
        if (o->share >= 100)
            argp_error(state, "--share %g: a canary is for less than all; activate the table for all",
                       o->share);
    } else if (strcmp(o->action, "shadow") == 0) {
        if (o->share < 0)
            argp_error(state, "shadow needs --share");
    } else if (o->share >= 0) {
        argp_error(state, "--share is for shadow and canary");
    }
    if (o->n_tenants > 0 && strcmp(o->action, "canary") != 0)
        argp_error(state, "--tenant is for canary");
}

static error_t cmd_table_parse(int key, char *arg, struct argp_state *state)
{
    struct table_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_REVISION:
        o->revision = option_uint(state, "--revision", arg, 1, ((uint64_t) 1 << 40) - 1);
        return 0;
    case OPT_YES:
        o->yes = true;
        return 0;
    case OPT_SHARE:
        o->share = option_double(state, "--share", arg, 0, 100);
        return 0;
    case OPT_TENANT:
        if (o->n_tenants == TENANTS_MAX)
            argp_error(state, "at most %d --tenant", TENANTS_MAX);
        o->tenants[o->n_tenants++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (o->action && o->what)
            argp_error(state, "'%s' is one argument too many", arg);
        *(o->action ? &o->what : &o->action) = arg;
        return 0;
    case ARGP_KEY_END:
        cmd_table_check(o, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, cmd_table_parse, "list|stage|shadow|canary|activate|rollback|retire [TABLE]",
    doc,     common_children, NULL,
    NULL};

static const char *cmd_table_state_name(enum kvc_table_state s)
{
    switch (s) {
    case KVC_TABLE_STAGED:
        return "staged";
    case KVC_TABLE_VERIFIED:
        return "verified";
    case KVC_TABLE_SHADOW:
        return "shadow";
    case KVC_TABLE_ACTIVE:
        return "active";
    case KVC_TABLE_DRAINING:
        return "draining";
    case KVC_TABLE_RETIRED:
        return "retired";
    case KVC_TABLE_REJECTED:
        return "rejected";
    }
    return "unknown"; /* of a newer daemon */
}

static json_t *cmd_table_pair_json(const double x[2])
{
    return json_pack("{s:f, s:f}", "k", x[KVC_K], "v", x[KVC_V]);
}

/* Coordinates beyond the last threshold, of those that were quantised. */
static double cmd_table_saturation(const kvc_fit *f, enum kvc_side side)
{
    return f->coded[side] > 0 ? (double) f->saturated[side] / (double) f->coded[side] : 0;
}

/* What clients reported, and how the table is tried. */
static json_t *cmd_table_live_json(const kvc_table_info *t)
{
    const kvc_fit *f = &t->fit;
    const double saturated[2] = {cmd_table_saturation(f, KVC_K), cmd_table_saturation(f, KVC_V)};

    return json_pack("{s:I, s:I, s:o, s:o, s:I, s:o, s:o, s:I, s:I, s:I}", "reports", (json_int_t) f->reports,
                     "tokens", (json_int_t) f->tokens, "error", cmd_table_pair_json(f->error), "saturation",
                     cmd_table_pair_json(saturated), "shadow_tokens", (json_int_t) f->shadow_tokens,
                     "active_error", cmd_table_pair_json(f->active_error), "shadow_error",
                     cmd_table_pair_json(f->shadow_error), "shadow_ppm", (json_int_t) t->shadow_ppm,
                     "canary_share", (json_int_t) t->canary_share, "canary_tenants",
                     (json_int_t) t->canary_tenants);
}

static json_t *cmd_table_json(const kvc_table_info *t)
{
    char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES];

    return json_pack(
        "{s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:o, s:o}", "digest", digest_hex(t->digest, digest),
        "model", digest_hex(t->model_digest, model), "state", cmd_table_state_name(t->state), "bpd_code",
        t->bpd_code, "file_bytes", (json_int_t) t->file_bytes, "references", (json_int_t) t->references,
        "pages", (json_int_t) t->pages, "revision", (json_int_t) t->revision, "reason",
        utf8_json(t->reason, strnlen(t->reason, sizeof(t->reason))), "live", cmd_table_live_json(t));
}

static int cmd_table_list_json(const kvc_table_info *tables, size_t n)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        if (json_array_append_new(all, cmd_table_json(&tables[i])) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }
    return report_json(all);
}

/* A line per thing that is going on with a table. */
static void cmd_table_print_trial(const kvc_table_info *t)
{
    char hex[DIGEST_HEX_BYTES];
    const kvc_fit *f = &t->fit;
    const char *name = digest_short(t->digest, hex);

    if (f->tokens > 0)
        printf("%s: live error of keys %.4f, values %.4f on %ju tokens; saturated %.2g, %.2g\n", name,
               f->error[KVC_K], f->error[KVC_V], (uintmax_t) f->tokens, cmd_table_saturation(f, KVC_K),
               cmd_table_saturation(f, KVC_V));
    if (t->state == KVC_TABLE_SHADOW)
        printf("%s: in shadow of %.4g %% of new chunks\n", name, t->shadow_ppm / 1e4);
    if (f->shadow_tokens > 0)
        printf("%s: error of keys %.4f, values %.4f, where the active table has %.4f, %.4f, on %ju tokens\n",
               name, f->shadow_error[KVC_K], f->shadow_error[KVC_V], f->active_error[KVC_K],
               f->active_error[KVC_V], (uintmax_t) f->shadow_tokens);
    if (t->canary_share > 0 || t->canary_tenants > 0)
        printf("%s: canary for %.3g %% of new sequences and all of %u tenants\n", name,
               t->canary_share / 2.56, t->canary_tenants);
}

static int cmd_table_list_text(const kvc_table_info *tables, size_t n)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<table\t<model\t<state\t>bpd\t>file\t>references\t>pages\t<reason");

    if (n == 0) {
        puts("the daemon has no tables");
        return COMMAND_OK;
    }
    for (size_t i = 0; i < n; i++) {
        const kvc_table_info *t = &tables[i];
        char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES], size[HUMAN_BYTES];

        report_row(r, "%s\t%s\t%s\t%.3f\t%s\t%ju\t%ju\t%.*s", digest_short(t->digest, digest),
                   digest_short(t->model_digest, model), cmd_table_state_name(t->state), t->bpd_code,
                   human_bytes(t->file_bytes, size), (uintmax_t) t->references, (uintmax_t) t->pages,
                   (int) sizeof(t->reason), t->reason);
    }
    if (report_print(r, stdout) < 0)
        return command_fail("out of memory");
    for (size_t i = 0; i < n; i++)
        cmd_table_print_trial(&tables[i]);
    return COMMAND_OK;
}

static int cmd_table_list(kvc_client *c, const struct table_options *o)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    size_t n;

    if (kvc_table_list(c, sizeof(*tables), &tables, &n) < 0)
        return command_fail("%s", kvc_last_error(c));
    return o->common.json ? cmd_table_list_json(tables, n) : cmd_table_list_text(tables, n);
}

static int cmd_table_stage(kvc_client *c, const struct table_options *o)
{
    _cleanup_(freep) void *bytes = NULL;
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    size_t n_bytes;
    int r;

    if (atomic_file_read(o->what, TABLE_FILE_BYTES_MAX, &bytes, &n_bytes, &e) < 0)
        return command_fail("%s", e.text);
    r = kvc_table_stage(c, bytes, n_bytes, digest);
    if (r < 0)
        return command_fail("cannot stage %s: %s", o->what, kvc_last_error(c));
    (void) digest_hex(digest, hex);
    if (o->common.json)
        return report_json(json_pack("{s:s, s:b}", "digest", hex, "already", r > 0));
    printf("%s %s\n", r > 0 ? "was already staged:" : "staged", hex);
    return COMMAND_OK;
}

/* Number of the digests in @tables that begin with the digits @text; the last of them in @ret. */
static size_t cmd_table_find_digest(const kvc_table_info *tables, size_t n, const char *text,
                                    uint8_t ret[KVC_DIGEST_BYTES])
{
    size_t found = 0;

    for (size_t i = 0; i < n; i++) {
        char hex[DIGEST_HEX_BYTES];

        if (strncasecmp(digest_hex(tables[i].digest, hex), text, strlen(text)) == 0) {
            memcpy(ret, tables[i].digest, KVC_DIGEST_BYTES);
            found++;
        }
    }
    return found;
}

/* A digest typed by a person, whole or its beginning: only what the daemon knows can be meant. */
static int cmd_table_digest_from_digits(kvc_client *c, const char *text, uint8_t ret[KVC_DIGEST_BYTES],
                                        struct errmsg *e)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    size_t n, found;
    int r;

    r = kvc_table_list(c, sizeof(*tables), &tables, &n);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    found = cmd_table_find_digest(tables, n, text, ret);
    if (found == 0)
        return fail(e, -ENOENT, "the daemon has no table %s; 'kvcobra table list' shows those it has", text);
    if (found > 1)
        return fail(e, -ENOTUNIQ, "%zu tables begin with %s; give more digits", found, text);
    return 0;
}

static int cmd_table_digest_of_file(const char *path, uint8_t ret[KVC_DIGEST_BYTES], struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    int r = table_load(path, &t, e);

    if (r == 0)
        memcpy(ret, t->digest, KVC_DIGEST_BYTES);
    return r;
}

static bool cmd_table_looks_like_digest(const char *text)
{
    size_t n = strlen(text);

    return n >= SHORT_DIGITS_MIN && n < DIGEST_HEX_BYTES && strspn(text, "0123456789abcdefABCDEF") == n;
}

/* What the TABLE argument means. */
static int cmd_table_find(kvc_client *c, const char *what, uint8_t ret[KVC_DIGEST_BYTES], struct errmsg *e)
{
    return cmd_table_looks_like_digest(what) ? cmd_table_digest_from_digits(c, what, ret, e)
                                             : cmd_table_digest_of_file(what, ret, e);
}

static int cmd_table_activate(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    uint64_t revision = 0;
    int r;

    if (cmd_table_find(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    r = kvc_table_activate(c, digest, o->revision, &revision);
    if (r < 0)
        return command_fail("cannot activate %s: %s", o->what, kvc_last_error(c));
    (void) digest_hex(digest, hex);
    if (o->common.json)
        return report_json(
            json_pack("{s:s, s:I, s:b}", "digest", hex, "revision", (json_int_t) revision, "already", r > 0));
    printf("%s %s, revision %ju\n", r > 0 ? "was already active:" : "active", hex, (uintmax_t) revision);
    return COMMAND_OK;
}

/* One of a shadow's and a canary's ends. */
static int cmd_table_tried(const struct table_options *o, const char *what, bool ends, const uint8_t *digest,
                           uint64_t revision, int r)
{
    char hex[DIGEST_HEX_BYTES];

    (void) digest_hex(digest, hex);
    if (o->common.json)
        return report_json(json_pack("{s:s, s:I, s:b, s:b}", "digest", hex, "revision", (json_int_t) revision,
                                     what, !ends, "already", r > 0));
    printf("%s%s %s, revision %ju\n", r > 0 ? "was already " : "",
           ends ? "not tried as that any more:" : what, hex, (uintmax_t) revision);
    return COMMAND_OK;
}

static int cmd_table_shadow(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    uint64_t revision = 0;
    bool ends = o->share <= 0;
    int r;

    if (cmd_table_find(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    (void) digest_hex(digest, hex);
    if (!ends &&
        !confirm(o->yes,
                 "Clients of the model encode %g %% of their new chunks twice, with table %.12s too, and "
                 "report both errors. Nothing is stored with it.",
                 o->share, hex))
        return COMMAND_FAILED;
    r = kvc_table_shadow(c, digest, ends ? 0 : (uint32_t) (o->share * 1e4 + 0.5) + (o->share < 5e-5),
                         o->revision, &revision);
    if (r < 0)
        return command_fail("cannot put %s in shadow: %s", o->what, kvc_last_error(c));
    return cmd_table_tried(o, "shadow", ends, digest, revision, r);
}

static int cmd_table_canary(kvc_client *c, const struct table_options *o)
{
    uint32_t share = o->share > 0 ? (uint32_t) (o->share * 2.56 + 0.5) : 0;
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    uint64_t revision = 0;
    bool ends = o->share <= 0 && o->n_tenants == 0;
    int r;

    if (o->share > 0 && share == 0)
        share = 1;
    if (share > 255)
        share = 255;
    if (cmd_table_find(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    (void) digest_hex(digest, hex);
    if (!confirm(o->yes,
                 ends
                     ? "New sequences stop using table %.12s; it drains if it was used. (%u/256, %zu tenants)"
                     : "New sequences use table %.12s: %u of 256, and all of %zu tenants. They share no "
                       "pages with the others.",
                 hex, share, o->n_tenants))
        return COMMAND_FAILED;
    r = kvc_table_canary(c, digest, share, o->tenants, o->n_tenants, o->revision, &revision);
    if (r < 0)
        return command_fail("cannot make %s a canary: %s", o->what, kvc_last_error(c));
    return cmd_table_tried(o, "canary", ends, digest, revision, r);
}

static int cmd_table_rollback(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES], active[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES], active_hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    uint64_t revision = 0;
    int r;

    if (cmd_table_find(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    (void) digest_hex(digest, hex);
    if (!confirm(
            o->yes,
            "New sequences stop using table %.12s and use the one that was active before it; sequences that "
            "have begun keep theirs.",
            hex))
        return COMMAND_FAILED;
    r = kvc_table_rollback(c, digest, o->revision, active, &revision);
    if (r < 0)
        return command_fail("cannot roll back %s: %s", o->what, kvc_last_error(c));
    (void) digest_hex(active, active_hex);
    if (o->common.json)
        return report_json(json_pack("{s:s, s:s, s:I, s:b}", "left", hex, "active", active_hex, "revision",
                                     (json_int_t) revision, "already", r > 0));
    printf("%s %s, revision %ju\n", r > 0 ? "not active before; active is" : "active", active_hex,
           (uintmax_t) revision);
    return COMMAND_OK;
}

static int cmd_table_retire(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    enum kvc_table_state state;
    struct errmsg e = {""};
    int r;

    if (cmd_table_find(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    (void) digest_hex(digest, hex);
    if (!confirm(
            o->yes,
            "Table %.12s takes no more pages and cannot be rolled back to; the pages that nobody holds go "
            "first when room is needed, all of them when nobody uses the table any more.",
            hex))
        return COMMAND_FAILED;
    r = kvc_table_retire(c, digest, o->revision, &state);
    if (r < 0)
        return command_fail("cannot retire %s: %s", o->what, kvc_last_error(c));
    if (o->common.json)
        return report_json(json_pack("{s:s, s:s, s:b}", "digest", hex, "state", cmd_table_state_name(state),
                                     "already", r > 0));
    printf("%s%s %s\n", r > 0 ? "was already " : "", cmd_table_state_name(state), hex);
    return COMMAND_OK;
}

static int cmd_table_run(int argc, char **argv)
{
    struct table_options o = {.share = -1};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (strcmp(o.action, "list") == 0)
        return cmd_table_list(c, &o);
    if (strcmp(o.action, "stage") == 0)
        return cmd_table_stage(c, &o);
    if (strcmp(o.action, "activate") == 0)
        return cmd_table_activate(c, &o);
    if (strcmp(o.action, "shadow") == 0)
        return cmd_table_shadow(c, &o);
    if (strcmp(o.action, "canary") == 0)
        return cmd_table_canary(c, &o);
    return strcmp(o.action, "rollback") == 0 ? cmd_table_rollback(c, &o) : cmd_table_retire(c, &o);
}

const struct command cmd_table = {"table", "stage, try, activate, roll back, retire a daemon's tables",
                                  cmd_table_run};
