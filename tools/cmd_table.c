/*
 * kvcobra table list|stage|activate|rollback|retire: the tables of a running daemon. Changes need the operator
 * socket; what its clients would notice is said first and asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command.h"
#include "tools/confirm.h"
#include "tools/handles.h"
#include "tools/report.h"

enum { OPT_SOCKET = 1, OPT_REVISION, OPT_YES };

enum { SHORT_DIGITS_MIN = 6 }; /* of a digest typed by a person; fewer tell too little apart */

struct table_options {
    struct common_options common;
    const char *action, *what, *socket;
    uint64_t revision;
    bool yes;
};

static const char doc[] =
    "Look at the allocation tables of a daemon, hand it a new one, or change the one in use.\v"
    "  list            every table that the daemon knows, and its state\n"
    "  stage FILE      give it a table file; the daemon verifies it before it answers\n"
    "  activate TABLE  new sequences use this one from now on; TABLE is a table file, a digest, or the first six "
    "or more digits of one that the daemon knows\n"
    "  rollback TABLE  leave TABLE, which is active, for the one that was active before it\n"
    "  retire TABLE    no more pages for TABLE, which is not active; it goes when nobody uses it\n\n"
    "Sequences keep the table they began with, so nothing stops and nothing is read wrongly.\n\n"
    "Example:\n\n"
    "  kvcobra table stage model-3.table --socket /run/kvcobra/operator.sock\n"
    "  kvcobra table activate model-3.table --socket /run/kvcobra/operator.sock";

static const struct argp_option options[] = {
    { "socket", OPT_SOCKET, "PATH", 0, "The daemon's socket; stage and activate need its operator socket (required)",
      1 },
    { "revision", OPT_REVISION, "N", 0, "activate, rollback: refuse unless this is newer than the daemon's revision "
      "(default: the next one); retire: refuse if the daemon's is newer", 1 },
    { "yes", OPT_YES, NULL, 0, "rollback, retire: do not ask", 1 },
    { 0 },
};

#define ACTIONS "list, stage, activate, rollback, retire"

static bool is_change(const char *action)
{
    static const char *const changes[] = { "stage", "activate", "rollback", "retire" };

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        if (strcmp(action, changes[i]) == 0)
            return true;
    return false;
}

static void check(const struct table_options *o, const struct argp_state *state)
{
    if (!o->action)
        argp_error(state, "one of " ACTIONS " is needed");
    if (!o->socket)
        argp_error(state, "--socket is needed");
    if (strcmp(o->action, "list") == 0) {
        if (o->what)
            argp_error(state, "list takes no argument");
    } else if (!is_change(o->action)) {
        argp_error(state, "'%s' is none of " ACTIONS, o->action);
    } else if (!o->what) {
        argp_error(state, "%s needs a table", o->action);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
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
    case ARGP_KEY_ARG:
        if (o->action && o->what)
            argp_error(state, "'%s' is one argument too many", arg);
        *(o->action ? &o->what : &o->action) = arg;
        return 0;
    case ARGP_KEY_END:
        check(o, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = { options, parse, "list|stage|activate|rollback|retire [TABLE]", doc, common_children, NULL, NULL };

static const char *state_name(enum kvc_table_state s)
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

static json_t *table_json(const kvc_table_info *t)
{
    char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES];

    return json_pack("{s:s, s:s, s:s, s:f, s:I, s:I, s:I, s:I, s:o}", "digest", digest_hex(t->digest, digest), "model",
                     digest_hex(t->model_digest, model), "state", state_name(t->state), "bpd_code", t->bpd_code,
                     "file_bytes", (json_int_t) t->file_bytes, "references", (json_int_t) t->references, "pages",
                     (json_int_t) t->pages, "revision", (json_int_t) t->revision, "reason",
                     utf8_json(t->reason, strnlen(t->reason, sizeof(t->reason))));
}

static int list_json(const kvc_table_info *tables, size_t n)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        if (json_array_append_new(all, table_json(&tables[i])) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }
    return report_json(all);
}

static int list_text(const kvc_table_info *tables, size_t n)
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
                   digest_short(t->model_digest, model), state_name(t->state), t->bpd_code,
                   human_bytes(t->file_bytes, size), (uintmax_t) t->references, (uintmax_t) t->pages,
                   (int) sizeof(t->reason), t->reason);
    }
    return report_print(r, stdout) < 0 ? command_fail("out of memory") : COMMAND_OK;
}

static int list(kvc_client *c, const struct table_options *o)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    size_t n;

    if (kvc_table_list(c, &tables, &n) < 0)
        return command_fail("%s", kvc_last_error(c));
    return o->common.json ? list_json(tables, n) : list_text(tables, n);
}

static int stage(kvc_client *c, const struct table_options *o)
{
    _cleanup_(freep) void *bytes = NULL;
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = { "" };
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
static size_t find_digest(const kvc_table_info *tables, size_t n, const char *text, uint8_t ret[KVC_DIGEST_BYTES])
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
static int digest_from_digits(kvc_client *c, const char *text, uint8_t ret[KVC_DIGEST_BYTES], struct errmsg *e)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    size_t n, found;
    int r;

    r = kvc_table_list(c, &tables, &n);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    found = find_digest(tables, n, text, ret);
    if (found == 0)
        return fail(e, -ENOENT, "the daemon has no table %s; 'kvcobra table list' shows those it has", text);
    if (found > 1)
        return fail(e, -ENOTUNIQ, "%zu tables begin with %s; give more digits", found, text);
    return 0;
}

static int digest_of_file(const char *path, uint8_t ret[KVC_DIGEST_BYTES], struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    int r = table_load(path, &t, e);

    if (r == 0)
        memcpy(ret, t->digest, KVC_DIGEST_BYTES);
    return r;
}

static bool looks_like_digest(const char *text)
{
    size_t n = strlen(text);

    return n >= SHORT_DIGITS_MIN && n < DIGEST_HEX_BYTES && strspn(text, "0123456789abcdefABCDEF") == n;
}

/* What the TABLE argument means. */
static int find_table(kvc_client *c, const char *what, uint8_t ret[KVC_DIGEST_BYTES], struct errmsg *e)
{
    return looks_like_digest(what) ? digest_from_digits(c, what, ret, e) : digest_of_file(what, ret, e);
}

static int activate(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = { "" };
    uint64_t revision = 0;
    int r;

    if (find_table(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    r = kvc_table_activate(c, digest, o->revision, &revision);
    if (r < 0)
        return command_fail("cannot activate %s: %s", o->what, kvc_last_error(c));
    (void) digest_hex(digest, hex);
    if (o->common.json)
        return report_json(json_pack("{s:s, s:I, s:b}", "digest", hex, "revision", (json_int_t) revision, "already",
                                     r > 0));
    printf("%s %s, revision %ju\n", r > 0 ? "was already active:" : "active", hex, (uintmax_t) revision);
    return COMMAND_OK;
}

static int rollback(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES], active[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES], active_hex[DIGEST_HEX_BYTES];
    struct errmsg e = { "" };
    uint64_t revision = 0;
    int r;

    if (find_table(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    (void) digest_hex(digest, hex);
    if (!confirm(o->yes, "New sequences stop using table %.12s and use the one that was active before it; sequences that "
                 "have begun keep theirs.", hex))
        return COMMAND_FAILED;
    r = kvc_table_rollback(c, digest, o->revision, active, &revision);
    if (r < 0)
        return command_fail("cannot roll back %s: %s", o->what, kvc_last_error(c));
    (void) digest_hex(active, active_hex);
    if (o->common.json)
        return report_json(json_pack("{s:s, s:s, s:I, s:b}", "left", hex, "active", active_hex, "revision",
                                     (json_int_t) revision, "already", r > 0));
    printf("%s %s, revision %ju\n", r > 0 ? "not active before; active is" : "active", active_hex, (uintmax_t) revision);
    return COMMAND_OK;
}

static int retire(kvc_client *c, const struct table_options *o)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    enum kvc_table_state state;
    struct errmsg e = { "" };
    int r;

    if (find_table(c, o->what, digest, &e) < 0)
        return command_fail("%s", e.text);
    (void) digest_hex(digest, hex);
    if (!confirm(o->yes, "Table %.12s takes no more pages and cannot be rolled back to; the pages that nobody holds go "
                 "first when room is needed, all of them when nobody uses the table any more.", hex))
        return COMMAND_FAILED;
    r = kvc_table_retire(c, digest, o->revision, &state);
    if (r < 0)
        return command_fail("cannot retire %s: %s", o->what, kvc_last_error(c));
    if (o->common.json)
        return report_json(json_pack("{s:s, s:s, s:b}", "digest", hex, "state", state_name(state), "already", r > 0));
    printf("%s%s %s\n", r > 0 ? "was already " : "", state_name(state), hex);
    return COMMAND_OK;
}

static int run(int argc, char **argv)
{
    struct table_options o = { 0 };
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct errmsg e = { "" };

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (strcmp(o.action, "list") == 0)
        return list(c, &o);
    if (strcmp(o.action, "stage") == 0)
        return stage(c, &o);
    if (strcmp(o.action, "activate") == 0)
        return activate(c, &o);
    return strcmp(o.action, "rollback") == 0 ? rollback(c, &o) : retire(c, &o);
}

const struct command cmd_table = { "table", "list, stage, activate, roll back and retire the tables of a daemon", run };
