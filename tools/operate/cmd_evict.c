/*
 * kvcobra evict: unheld pages leave a daemon's pool, for a tenant, a table, or all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra-operator.h"
#include "tools/command/command.h"
#include "tools/command/confirm.h"
#include "tools/command/handles.h"
#include "tools/command/report.h"

enum { OPT_SOCKET = 1, OPT_TENANT, OPT_TABLE, OPT_YES };

struct evict_options {
    struct common_options common;
    const char *socket, *tenant, *table;
    bool yes;
};

static const char doc[] = "Drop the pages that nobody holds from a daemon's pool. Sequences that are under "
                          "way keep what they hold; what is "
                          "dropped is computed again when it is asked for.\v"
                          "Example:\n\n"
                          "  kvcobra evict --tenant uid-1000 --socket /run/kvcobra/operator.sock";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0, "The daemon's operator socket (required)", 1},
    {"tenant", OPT_TENANT, "NAME", 0,
     "Of this tenant, as 'kvcobra status' names it: uid-1000, on a GPU uid-1000@gpu0 (default: of all)", 1},
    {"table", OPT_TABLE, "DIGEST", 0, "Of this table, all 64 digits (default: of all)", 1},
    {"yes", OPT_YES, NULL, 0, "Do not ask", 1},
    {0},
};

static error_t cmd_evict_parse(int key, char *arg, struct argp_state *state)
{
    struct evict_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_TENANT:
        o->tenant = arg;
        return 0;
    case OPT_TABLE:
        if (strlen(arg) != 2 * KVC_DIGEST_BYTES || strspn(arg, "0123456789abcdefABCDEF") != strlen(arg))
            argp_error(state, "--table '%s' is not a digest of %d hexadecimal digits", arg,
                       2 * KVC_DIGEST_BYTES);
        o->table = arg;
        return 0;
    case OPT_YES:
        o->yes = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    case ARGP_KEY_END:
        if (!o->socket)
            argp_error(state, "--socket is needed");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_evict_parse, NULL, doc, common_children, NULL, NULL};

static void cmd_evict_read_digits(const char *hex, uint8_t ret[KVC_DIGEST_BYTES])
{
    for (size_t i = 0; i < KVC_DIGEST_BYTES; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        ret[i] = (uint8_t) strtoul(byte, NULL, 16);
    }
}

static int cmd_evict_run(int argc, char **argv)
{
    struct evict_options o = {0};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    uint8_t digest[KVC_DIGEST_BYTES];
    struct errmsg e = {""};
    char size[HUMAN_BYTES];
    uint64_t pages, bytes;

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (o.table)
        cmd_evict_read_digits(o.table, digest);
    if (!confirm(o.yes, "Every page of %s and %s%.12s that nobody holds is dropped.",
                 o.tenant ? o.tenant : "all tenants", o.table ? "table " : "all tables",
                 o.table ? o.table : ""))
        return COMMAND_FAILED;
    if (kvc_evict(c, o.tenant, o.table ? digest : NULL, &pages, &bytes) < 0)
        return command_fail("%s", kvc_last_error(c));
    if (o.common.json)
        return report_json(json_pack("{s:I, s:I}", "pages", (json_int_t) pages, "bytes", (json_int_t) bytes));
    printf("%ju pages dropped, %s\n", (uintmax_t) pages, human_bytes(bytes, size));
    return COMMAND_OK;
}

const struct command cmd_evict = {"evict", "drop the pages of a daemon that nobody holds", cmd_evict_run};
