/*
 * kvcobra drain: a daemon takes nothing new and finishes what it has, before it is stopped.
 */
#include <poll.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra-operator.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/confirm.h"
#include "tools/command/handles.h"
#include "tools/command/report.h"

enum { OPT_SOCKET = 1, OPT_OFF, OPT_WAIT, OPT_TIMEOUT, OPT_YES };
enum { ASK_EVERY_MS = 200 };

struct drain_options {
    struct common_options common;
    const char *socket;
    bool off, wait, yes;
    double timeout;
};

static const char doc[] = "Let a daemon finish: new sessions, models and pages are refused (ESHUTDOWN) from "
                          "now on, clients that meet that go on "
                          "with private memory, and what is held stays readable. A daemon is idle once no "
                          "page is held and none is being "
                          "written.\v"
                          "Under systemd a restart keeps pages and what clients hold, so draining is for a "
                          "stop, a reboot, or another pool:\n\n"
                          "  kvcobra drain --wait --yes --socket /run/kvcobra/operator.sock\n"
                          "  systemctl stop kvcobrad.socket kvcobrad.service\n\n"
                          "A daemon that starts again does not drain.";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0, "The daemon's operator socket (required)", 1},
    {"off", OPT_OFF, NULL, 0, "Take new work again", 1},
    {"wait", OPT_WAIT, NULL, 0, "Come back when the daemon is idle", 1},
    {"timeout", OPT_TIMEOUT, "SECONDS", 0, "Wait no longer than this, then fail (default: for ever)", 1},
    {"yes", OPT_YES, NULL, 0, "Do not ask", 1},
    {0},
};

static error_t cmd_drain_parse(int key, char *arg, struct argp_state *state)
{
    struct drain_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_OFF:
        o->off = true;
        return 0;
    case OPT_WAIT:
        o->wait = true;
        return 0;
    case OPT_TIMEOUT:
        o->timeout = option_double(state, "--timeout", arg, 0, 1e6);
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
        if (o->off && o->wait)
            argp_error(state, "--off and --wait do not go together: there is nothing to wait for");
        if (o->timeout >= 0 && !o->wait)
            argp_error(state, "--timeout is for --wait");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_drain_parse, NULL, doc, common_children, NULL, NULL};

static bool cmd_drain_is_idle(const kvc_drain_state *s)
{
    return s->held_pages == 0 && s->reservations == 0;
}

/* Asks until the daemon is idle; somebody else may end the draining meanwhile. */
static int cmd_drain_wait_idle(const struct drain_options *o, kvc_client *c, kvc_drain_state *s)
{
    double until = clock_seconds() + o->timeout;

    while (!cmd_drain_is_idle(s)) {
        if (!s->draining)
            return command_fail("the daemon was told to take new work again: not waiting any longer");
        if (o->timeout >= 0 && clock_seconds() >= until)
            return command_fail("after %g seconds %ju pages are still held and %ju are being written",
                                o->timeout, (uintmax_t) s->held_pages, (uintmax_t) s->reservations);
        (void) poll(NULL, 0, ASK_EVERY_MS);
        if (kvc_drain(c, KVC_DRAIN_ASK, s) < 0)
            return command_fail("%s", kvc_last_error(c));
    }
    return COMMAND_OK;
}

static int cmd_drain_show(const struct drain_options *o, const kvc_drain_state *s)
{
    if (o->common.json)
        return report_json(json_pack("{s:b, s:b, s:I, s:I, s:I}", "draining", s->draining != 0, "idle",
                                     cmd_drain_is_idle(s), "sessions", (json_int_t) s->sessions,
                                     "reservations", (json_int_t) s->reservations, "held_pages",
                                     (json_int_t) s->held_pages));
    printf("%s: %ju sessions, %ju pages held, %ju being written%s\n",
           s->draining ? "draining" : "taking new work", (uintmax_t) s->sessions, (uintmax_t) s->held_pages,
           (uintmax_t) s->reservations,
           s->draining && cmd_drain_is_idle(s) ? "; idle, it can be stopped" : "");
    return COMMAND_OK;
}

static int cmd_drain_run(int argc, char **argv)
{
    struct drain_options o = {.timeout = -1};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    kvc_drain_state state = {.struct_bytes = sizeof(state)};
    struct errmsg e = {""};
    int r = COMMAND_OK;

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (!o.off &&
        !confirm(o.yes, "The daemon takes no new sessions, models and pages until it starts anew or 'kvcobra "
                        "drain --off' is said."))
        return COMMAND_FAILED;
    if (kvc_drain(c, o.off ? KVC_DRAIN_OFF : KVC_DRAIN_ON, &state) < 0)
        return command_fail("%s", kvc_last_error(c));
    if (o.wait)
        r = cmd_drain_wait_idle(&o, c, &state);
    return r == COMMAND_OK ? cmd_drain_show(&o, &state) : r;
}

const struct command cmd_drain = {"drain", "let a daemon finish before it is stopped", cmd_drain_run};
