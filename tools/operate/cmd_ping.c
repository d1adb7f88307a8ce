/* kvcobra ping: whether a daemon answers, and how fast. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/client_model.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/operator_call.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"

enum { OPT_COUNT = 1, OPT_OPERATOR, OPT_SOCKET, OPT_TIMEOUT };

struct ping_options {
    struct common_options common;
    const char *socket;
    enum kvc_socket which;
    size_t count;
    uint32_t timeout_ms; /* 0: not given */
};

static const char doc[] =
    "Connect to a daemon as a client, send it requests that cost it nothing, and print how long it takes to "
    "answer. The exit status is 1 if no daemon answers.\vExamples:\n\n"
    "  kvcobra ping\n"
    "  kvcobra ping --operator --count 100 --json";

static const struct argp_option options[] = {
    {"count", OPT_COUNT, "N", 0, "Requests, 1 to 100000 (default 10)", 1},
    {"operator", OPT_OPERATOR, NULL, 0, "Use the operator socket", 1},
    {"socket", OPT_SOCKET, "PATH", 0,
     "The daemon's socket (default: $KVCOBRA_SOCKET, or $KVCOBRA_OPERATOR_SOCKET with --operator; else that "
     "of your "
     "kvcobrad --user, if it runs; else that in /run/kvcobra)",
     1},
    OPTION_TIMEOUT(OPT_TIMEOUT, 1),
    {0},
};

static error_t cmd_ping_parse(int key, char *arg, struct argp_state *state)
{
    struct ping_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_COUNT:
        o->count = (size_t) option_uint(state, "--count", arg, 1, 100000);
        return 0;
    case OPT_OPERATOR:
        o->which = KVC_SOCKET_OPERATORS;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_TIMEOUT:
        o->timeout_ms = option_timeout_ms(state, arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_ping_parse, NULL, doc, common_children, NULL, NULL};

static int cmd_ping_by_time(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* The list of aliases is served on both sockets, and is nearly always empty. */
static int cmd_ping_measure(kvc_client *c, double *seconds, size_t n)
{
    const Kvcobra__ListAliases list = KVCOBRA__LIST_ALIASES__INIT;
    struct errmsg e = {""};

    for (size_t i = 0; i < n; i++) {
        _cleanup_(operator_message_freep) Kvcobra__ListAliasesReply *aliases = NULL;
        double start = clock_seconds();

        if (operator_call(c, KVCOBRA__REQUEST__BODY_LIST_ALIASES, &list.base, &aliases, &e) < 0)
            return command_fail("%s", e.text);
        seconds[i] = clock_seconds() - start;
    }
    qsort(seconds, n, sizeof(*seconds), cmd_ping_by_time);
    return COMMAND_OK;
}

static int cmd_ping_print(const struct ping_options *o, const char *path, double connect,
                          const double *seconds)
{
    size_t n = o->count;

    if (o->common.json)
        return report_json(json_pack("{s:s, s:f, s:I, s:{s:f, s:f, s:f}}", "socket", path, "connect_s",
                                     connect, "count", (json_int_t) n, "answer_s", "min", seconds[0],
                                     "median", seconds[n / 2], "max", seconds[n - 1]));

    terminal_print(stdout, 2,
                   "kvcobrad answers at %s: connected in %.2f ms, %zu answers in %.3f ms (%.3f to %.3f)\n",
                   path, connect * 1e3, n, seconds[n / 2] * 1e3, seconds[0] * 1e3, seconds[n - 1] * 1e3);
    return COMMAND_OK;
}

static int cmd_ping_run(int argc, char **argv)
{
    struct ping_options o = {.count = 10};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(freep) double *seconds = NULL;
    struct errmsg e = {""};
    double start, connect;
    char path[108]; /* struct sockaddr_un */
    int code;

    command_parse(&argp, argc, argv, &o);
    if (kvc_socket_path(o.which, o.socket, path, sizeof(path)) < 0)
        return command_fail("the path of the socket is longer than %zu bytes", sizeof(path) - 1);

    seconds = calloc(o.count, sizeof(*seconds));
    if (!seconds)
        return command_fail("out of memory");

    start = clock_seconds();
    if (client_open_at(o.which, o.socket, o.timeout_ms, &c, &e) < 0)
        return command_fail("%s", e.text);

    connect = clock_seconds() - start;
    code = cmd_ping_measure(c, seconds, o.count);
    return code == COMMAND_OK ? cmd_ping_print(&o, path, connect, seconds) : code;
}

COMMAND(cmd_ping) = {
    .name = "ping",
    .summary = "check that a daemon answers, and how fast",
    .run = cmd_ping_run,
    .rank = 150,
    .related = "doctor",
};
