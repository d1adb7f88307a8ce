/* kvcobra drain: a daemon refuses new work and finishes its current work, so that it can be stopped. */
#include <poll.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/clock.h"
#include "tools/command/message_json.h"
#include "tools/command/operator.h"
#include "tools/command/operator_call.h"
#include "tools/command/option.h"

enum { OPT_OFF = 1, OPT_WAIT, OPT_WITHIN };
enum { POLL_MS = 200 };

struct drain_options {
    struct operator_options operator;
    bool off, wait;
    double within; /* seconds; negative: no limit */
};

static const char doc[] =
    "Prepare a daemon for a stop: it refuses new sessions, models and pages with ESHUTDOWN. Clients that get "
    "this error continue with private memory; pages that clients hold stay readable. A daemon is idle when "
    "no page is held and none is being written.\vUnder systemd a restart preserves pages and leases. Drain "
    "before a stop, a reboot, or a change of the pool. A daemon that starts again accepts new work.\n\n"
    "Example:\n\n"
    "  kvcobra drain --wait --yes\n"
    "  systemctl stop kvcobrad.socket kvcobrad.service";

static const struct argp_option options[] = {
    {"off", OPT_OFF, NULL, 0, "Accept new work again", 1},
    {"wait", OPT_WAIT, NULL, 0, "Return when the daemon is idle", 1},
    {"within", OPT_WITHIN, "SECONDS", 0,
     "With --wait: fail if the daemon is not idle after this time (default: wait without a limit)", 1},
    {0},
};

static error_t cmd_drain_parse(int key, char *arg, struct argp_state *state)
{
    struct drain_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_OFF:
        o->off = true;
        return 0;
    case OPT_WAIT:
        o->wait = true;
        return 0;
    case OPT_WITHIN:
        o->within = option_double(state, "--within", arg, 0, 1e6);
        return 0;
    case ARGP_KEY_END:
        if (o->off && o->wait)
            argp_error(state, "--off and --wait exclude each other");
        if (o->within >= 0 && !o->wait)
            argp_error(state, "--within needs --wait");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_drain_parse, NULL, doc, operator_children, NULL, NULL};

static bool cmd_drain_is_idle(const Kvcobra__DrainReply *s)
{
    return s->held_pages == 0 && s->reservations == 0;
}

/* Replaces *reply by the answer to @drain. Return: an exit code. */
static int cmd_drain_call(kvc_client *c, const Kvcobra__Drain *drain, Kvcobra__DrainReply **reply)
{
    struct errmsg e = {""};

    operator_message_freep(reply);
    *reply = NULL;
    if (operator_call(c, KVCOBRA__REQUEST__BODY_DRAIN, &drain->base, reply, &e) < 0)
        return command_fail("%s", e.text);
    return COMMAND_OK;
}

/* Polls until the daemon is idle; another operator may end the draining meanwhile. */
static int cmd_drain_wait_idle(const struct drain_options *o, kvc_client *c, Kvcobra__DrainReply **s)
{
    Kvcobra__Drain ask = KVCOBRA__DRAIN__INIT;
    double until = clock_seconds() + o->within;
    int code = COMMAND_OK;

    ask.ask = true;
    while (code == COMMAND_OK && !cmd_drain_is_idle(*s)) {
        if (!(*s)->draining)
            return command_fail("another operator ended the draining; the daemon accepts new work");

        if (o->within >= 0 && clock_seconds() >= until)
            return command_fail("after %g seconds %ju pages are still held and %ju are being written",
                                o->within, (uintmax_t) (*s)->held_pages, (uintmax_t) (*s)->reservations);

        (void) poll(NULL, 0, POLL_MS);
        code = cmd_drain_call(c, &ask, s);
    }

    return code;
}

static int cmd_drain_print(const struct drain_options *o, const Kvcobra__DrainReply *s)
{
    if (o->operator.common.json)
        return message_json_report(json_pack("{s:b}", "idle", cmd_drain_is_idle(s)), &s->base);

    printf("%s: %ju sessions, %ju pages held, %ju being written%s\n",
           s->draining ? "draining" : "accepting new work", (uintmax_t) s->sessions,
           (uintmax_t) s->held_pages, (uintmax_t) s->reservations,
           s->draining && cmd_drain_is_idle(s) ? "; idle, it can be stopped" : "");
    return COMMAND_OK;
}

static int cmd_drain_request(kvc_client *c, void *ctx)
{
    const struct drain_options *o = ctx;
    _cleanup_(operator_message_freep) Kvcobra__DrainReply *state = NULL;
    Kvcobra__Drain drain = KVCOBRA__DRAIN__INIT;
    int code;

    drain.off = o->off;
    if (!o->off && !operator_confirm(&o->operator, "The daemon refuses new sessions, models and pages until "
                                                   "it restarts or 'kvcobra drain --off' runs."))
        return COMMAND_FAILED;

    code = cmd_drain_call(c, &drain, &state);
    if (code == COMMAND_OK && o->wait)
        code = cmd_drain_wait_idle(o, c, &state);
    return code == COMMAND_OK ? cmd_drain_print(o, state) : code;
}

static int cmd_drain_run(int argc, char **argv)
{
    struct drain_options o = {.within = -1};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_drain_request, &o);
}

COMMAND(cmd_drain) = {
    .name = "drain",
    .summary = "let a daemon finish its work before it is stopped",
    .run = cmd_drain_run,
    .rank = 280,
    .related = "status",
};
