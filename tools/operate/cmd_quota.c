/*
 * kvcobra quota: what a tenant of a daemon may have at most, and what it has for certain.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra-operator.h"
#include "tools/command/command.h"
#include "tools/command/confirm.h"
#include "tools/command/handles.h"
#include "tools/command/report.h"

enum { OPT_SOCKET = 1, OPT_YES, OPT_MAX, OPT_GUARANTEE };

struct quota_options {
    struct common_options common;
    const char *socket, *tenant;
    uint64_t max_bytes, guarantee_bytes; /* KVC_QUOTA_KEEP: not given */
    bool yes;
};

static const char doc[] =
    "Change what a tenant of a daemon may have: the most of pages and arenas together, and what it gets of "
    "the pool whatever "
    "other tenants do. A lower maximum drops pages that nobody holds at once; what is held stays, and "
    "nothing new is taken, "
    "until the tenant is below it. A guarantee counts in whole extents; others may borrow a part of it while "
    "it is not used, "
    "and are asked to give it back.\v"
    "SIZE is a number, or one with K, M, G or T behind it. A daemon with a state folder remembers both; the "
    "configuration "
    "file says what every tenant begins with. A tenant has pages on each device apart: uid-1000 in the "
    "host's memory, "
    "uid-1000@gpu0 on the first GPU.\n\n"
    "Example:\n\n"
    "  kvcobra quota uid-1000 --max 8G --guarantee 2G --socket /run/kvcobra/operator.sock";

static const struct argp_option options[] = {
    {"max", OPT_MAX, "SIZE", 0, "The most of pages and arenas", 1},
    {"guarantee", OPT_GUARANTEE, "SIZE", 0, "Of the pool, for certain; 0: nothing", 1},
    {"socket", OPT_SOCKET, "PATH", 0, "The daemon's operator socket (required)", 1},
    {"yes", OPT_YES, NULL, 0, "Do not ask", 1},
    {0},
};

static uint64_t cmd_quota_read_bytes(const struct argp_state *state, const char *arg)
{
    static const char units[] = "KMGT";
    const char *unit;
    unsigned shift = 0;
    uint64_t v;
    char *end;

    errno = 0;
    end = (char *) arg;
    v = *arg >= '0' && *arg <= '9' ? strtoull(arg, &end, 10) : 0;
    if (end != arg && *end != '\0') {
        unit = end[1] == '\0' ? strchr(units, *end) : NULL;
        shift = unit ? 10 * (unsigned) (unit - units + 1) : 64;
    }
    if (end == arg || errno == ERANGE || shift == 64 || v >= UINT64_MAX >> shift)
        argp_error(state, "'%s' is not a size such as 65536, 64K, 64M or 2G", arg);
    return v << (shift & 63);
}

static error_t cmd_quota_parse(int key, char *arg, struct argp_state *state)
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
    case OPT_MAX:
        o->max_bytes = cmd_quota_read_bytes(state, arg);
        if (o->max_bytes == 0)
            argp_error(state, "--max 0 would let nobody in");
        return 0;
    case OPT_GUARANTEE:
        o->guarantee_bytes = cmd_quota_read_bytes(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->tenant)
            argp_error(state, "'%s' is one argument too many", arg);
        o->tenant = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->tenant || (o->max_bytes == KVC_QUOTA_KEEP && o->guarantee_bytes == KVC_QUOTA_KEEP))
            argp_error(state, "a tenant, and --max or --guarantee, are needed");
        if (!o->socket)
            argp_error(state, "--socket is needed");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_quota_parse, "TENANT", doc, common_children, NULL, NULL};

static int cmd_quota_ask(const struct quota_options *o)
{
    char text[2 * HUMAN_BYTES + 128] = "", size[HUMAN_BYTES];
    size_t n = 0;

    if (o->max_bytes != KVC_QUOTA_KEEP)
        n = (size_t) snprintf(text, sizeof(text),
                              " have at most %s of pages and arenas (above that, pages that nobody holds "
                              "go now)",
                              human_bytes(o->max_bytes, size));
    if (o->guarantee_bytes != KVC_QUOTA_KEEP)
        (void) snprintf(text + n, sizeof(text) - n, "%s be sure of %s of the pool", n > 0 ? ", and" : "",
                        human_bytes(o->guarantee_bytes, size));
    return confirm(o->yes, "Tenant %s will%s.", o->tenant, text);
}

static int cmd_quota_run(int argc, char **argv)
{
    struct quota_options o = {.max_bytes = KVC_QUOTA_KEEP, .guarantee_bytes = KVC_QUOTA_KEEP};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    char max[HUMAN_BYTES], old_max[HUMAN_BYTES], sure[HUMAN_BYTES], old_sure[HUMAN_BYTES],
        in_use[HUMAN_BYTES];
    kvc_quota_state q = {.struct_bytes = sizeof(q)};
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (!cmd_quota_ask(&o))
        return COMMAND_FAILED;
    if (kvc_quota_set(c, o.tenant, o.max_bytes, o.guarantee_bytes, &q) < 0)
        return command_fail("%s", kvc_last_error(c));
    if (o.common.json)
        return report_json(
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "tenant", o.tenant, "quota_bytes",
                      (json_int_t) q.max_bytes, "previous_bytes", (json_int_t) q.previous_max_bytes,
                      "guarantee_bytes", (json_int_t) q.guarantee_bytes, "previous_guarantee_bytes",
                      (json_int_t) q.previous_guarantee_bytes, "used_bytes", (json_int_t) q.used_bytes));
    printf("%s: at most %s (was %s), sure of %s (was %s), %s in use\n", o.tenant,
           human_bytes(q.max_bytes, max), human_bytes(q.previous_max_bytes, old_max),
           human_bytes(q.guarantee_bytes, sure), human_bytes(q.previous_guarantee_bytes, old_sure),
           human_bytes(q.used_bytes, in_use));
    return COMMAND_OK;
}

const struct command cmd_quota = {"quota", "set what a tenant of a daemon may have, at most and for certain",
                                  cmd_quota_run};
