/*
 * kvcobra quota: how many bytes of pages and arenas a tenant of a daemon may have.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command.h"
#include "tools/confirm.h"
#include "tools/handles.h"
#include "tools/report.h"

enum { OPT_SOCKET = 1, OPT_YES };

struct quota_options {
    struct common_options common;
    const char *socket, *tenant;
    uint64_t bytes;
    bool yes;
};

static const char doc[] =
    "Change what a tenant of a daemon may have in pages and arenas together. A lower quota drops pages that nobody holds "
    "at once; what is held stays, and nothing new is taken, until the tenant is below it.\v"
    "BYTES is a number, or one with K, M, G or T behind it. The change lasts until the daemon starts anew; the "
    "configuration file says what every tenant begins with.\n\n"
    "Example:\n\n"
    "  kvcobra quota uid-1000 8G --socket /run/kvcobra/operator.sock";

static const struct argp_option options[] = {
    { "socket", OPT_SOCKET, "PATH", 0, "The daemon's operator socket (required)", 1 },
    { "yes", OPT_YES, NULL, 0, "Do not ask", 1 },
    { 0 },
};

static uint64_t read_bytes(const struct argp_state *state, const char *arg)
{
    static const char units[] = "KMGT";
    const char *unit;
    unsigned shift = 0;
    uint64_t v;
    char *end;

    errno = 0;
    v = *arg >= '0' && *arg <= '9' ? strtoull(arg, &end, 10) : 0;
    if (v > 0 && *end != '\0') {
        unit = end[1] == '\0' ? strchr(units, *end) : NULL;
        shift = unit ? 10 * (unsigned) (unit - units + 1) : 64;
    }
    if (v == 0 || errno == ERANGE || shift == 64 || v > UINT64_MAX >> shift)
        argp_error(state, "'%s' is not a size such as 65536, 64K, 64M or 2G", arg);
    return v << (shift & 63);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct quota_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_YES:
        o->yes = true;
        return 0;
    case ARGP_KEY_ARG:
        if (o->bytes > 0)
            argp_error(state, "'%s' is one argument too many", arg);
        if (!o->tenant)
            o->tenant = arg;
        else
            o->bytes = read_bytes(state, arg);
        return 0;
    case ARGP_KEY_END:
        if (!o->tenant || o->bytes == 0)
            argp_error(state, "a tenant and a size are needed");
        if (!o->socket)
            argp_error(state, "--socket is needed");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = { options, parse, "TENANT BYTES", doc, common_children, NULL, NULL };

static int run(int argc, char **argv)
{
    struct quota_options o = { 0 };
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    char quota[HUMAN_BYTES], before[HUMAN_BYTES], in_use[HUMAN_BYTES];
    struct errmsg e = { "" };
    uint64_t previous, used;

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (!confirm(o.yes, "Tenant %s may have %s of pages and arenas; above that, pages that nobody holds are dropped now.",
                 o.tenant, human_bytes(o.bytes, quota)))
        return COMMAND_FAILED;
    if (kvc_quota_set(c, o.tenant, o.bytes, &previous, &used) < 0)
        return command_fail("%s", kvc_last_error(c));
    if (o.common.json)
        return report_json(json_pack("{s:s, s:I, s:I, s:I}", "tenant", o.tenant, "quota_bytes", (json_int_t) o.bytes,
                                     "previous_bytes", (json_int_t) previous, "used_bytes", (json_int_t) used));
    printf("%s: quota %s (was %s), %s in use\n", o.tenant, human_bytes(o.bytes, quota), human_bytes(previous, before),
           human_bytes(used, in_use));
    return COMMAND_OK;
}

const struct command cmd_quota = { "quota", "set what a tenant of a daemon may have", run };
