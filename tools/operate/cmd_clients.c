/* kvcobra clients list|disconnect: sessions of a daemon's clients, what they hold, how to close one. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/message_json.h"
#include "tools/command/operator.h"
#include "tools/command/operator_call.h"
#include "tools/command/option.h"
#include "tools/command/report.h"
#include "tools/command/tenant_name.h"

enum { OPT_TENANT = 1 };

struct clients_options {
    struct operator_options operator;
    const char *tenant;
    const char *action; /* NULL: list */
    uint64_t session;   /* to disconnect; 0: not given */
};

static const char doc[] =
    "List the clients of a daemon and the pages that they hold, or close a client's connection.\v"
    "  list                   print all sessions (default)\n"
    "  disconnect SESSION     close the connection of a session\n\n"
    "A session is what one process has from the daemon. It has a number that the log uses, too. A process "
    "that "
    "lost its connection keeps its session, as \"detached\", while it holds pages: they cannot be evicted "
    "until "
    "it exits. A client that is disconnected loses the pages that it is writing, and may connect again.\n\n"
    "Examples:\n\n"
    "  kvcobra clients\n"
    "  kvcobra clients --json --tenant uid-0";

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "TENANT", 0, "Only clients of this tenant, or user", 1},
    {0},
};

static void cmd_clients_take_argument(struct clients_options *o, const char *arg,
                                      const struct argp_state *state)
{
    if (!o->action) {
        if (strcmp(arg, "list") != 0 && strcmp(arg, "disconnect") != 0)
            option_unknown(state, arg, "list, disconnect");
        o->action = arg;
        return;
    }

    if (strcmp(o->action, "list") == 0 || o->session > 0)
        argp_error(state, "'%s' is one argument too many", arg);
    o->session = option_uint(state, "SESSION", arg, 1, UINT64_MAX);
}

static error_t cmd_clients_parse(int key, char *arg, struct argp_state *state)
{
    struct clients_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_TENANT:
        o->tenant = arg;
        return 0;
    case ARGP_KEY_ARG:
        cmd_clients_take_argument(o, arg, state);
        return 0;
    case ARGP_KEY_END:
        if (o->action && strcmp(o->action, "disconnect") == 0 && o->session == 0)
            argp_error(state, "disconnect needs the number of a SESSION");
        if (o->session > 0 && o->tenant)
            argp_error(state, "--tenant is for list");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, cmd_clients_parse, "[list]\ndisconnect SESSION", doc, operator_children, NULL, NULL};

/* ---- list ---- */

/* The name of the process on this host; "-": it is gone, or of another PID namespace. */
static const char *cmd_clients_program(uint32_t pid, char ret[static 32])
{
    char path[48];
    FILE *f;

    (void) snprintf(path, sizeof(path), "/proc/%" PRIu32 "/comm", pid);
    f = fopen(path, "re");
    if (!f || !fgets(ret, 32, f))
        (void) snprintf(ret, 32, "-");
    if (f)
        (void) fclose(f);
    for (char *c = ret; *c; c++) /* a process chooses its name */
        if (*c < ' ' || *c > '~')
            *c = *c == '\n' && c[1] == '\0' ? '\0' : '?';
    return ret;
}

/* A session as the daemon describes it, and the name of its process. */
static json_t *cmd_clients_json(const Kvcobra__SessionInfo *s)
{
    json_t *one = message_json(&s->base);
    char program[32];

    if (json_object_set_new(one, "program", json_string(cmd_clients_program(s->pid, program))) == 0)
        return one;
    json_decref(one);
    return NULL;
}

static int cmd_clients_print_json(const Kvcobra__ListSessionsReply *list, const char *tenant)
{
    json_t *all = json_array();

    for (size_t i = 0; i < list->n_sessions; i++)
        if (!tenant || strcmp(list->sessions[i]->tenant, tenant) == 0)
            if (json_array_append_new(all, cmd_clients_json(list->sessions[i])) < 0) {
                json_decref(all);
                return report_json(NULL);
            }
    return report_json(all);
}

static int cmd_clients_print_text(const Kvcobra__ListSessionsReply *list, const char *tenant)
{
    _cleanup_(report_freep) struct report *r = report_new(
        ">session\t>process\t<program\t<tenant\t<state\t>age\t>idle\t>held pages\t>leases\t>writing\t>hits\t>"
        "misses\t>arena\t<client");
    size_t n_shown = 0;

    for (size_t i = 0; i < list->n_sessions; i++) {
        const Kvcobra__SessionInfo *s = list->sessions[i];
        char age[HUMAN_BYTES], idle[HUMAN_BYTES], arena[HUMAN_BYTES], program[32], name[TENANT_NAME_BYTES];

        if (tenant && strcmp(s->tenant, tenant) != 0)
            continue;

        report_row(r, "%ju\t%u\t%s\t%s\t%s\t%s\t%s\t%ju\t%ju\t%ju\t%ju\t%ju\t%s\t%s", (uintmax_t) s->session,
                   s->pid, cmd_clients_program(s->pid, program), tenant_name_show(s->tenant, name),
                   s->connected ? "connected" : "detached", human_seconds((double) s->age_ms * 1e-3, age),
                   human_seconds((double) s->idle_ms * 1e-3, idle), (uintmax_t) s->held_pages,
                   (uintmax_t) s->leases, (uintmax_t) s->reservations, (uintmax_t) s->hits,
                   (uintmax_t) s->misses, human_bytes(s->arena_bytes, arena), s->client_name);
        n_shown++;
    }

    if (n_shown == 0)
        puts("the daemon has no clients");
    else
        report_print(r, stdout);
    return COMMAND_OK;
}

/* The sessions behind number @after, whose numbers grow, so that the list ends. */
static int cmd_clients_get_some(kvc_client *c, uint64_t after, Kvcobra__ListSessionsReply **ret,
                                struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ListSessionsReply *got = NULL;
    Kvcobra__ListSessions list = KVCOBRA__LIST_SESSIONS__INIT;
    int r;

    list.after = after;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_LIST_SESSIONS, &list.base, &got, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < got->n_sessions; i++) {
        if (got->sessions[i]->session <= after)
            return fail(e, -EPROTO, "kvcobrad's answer is not valid: sessions are not in order");
        after = got->sessions[i]->session;
    }

    *ret = take_ptr(got);
    return 0;
}

/* All sessions. */
static int cmd_clients_get(kvc_client *c, Kvcobra__ListSessionsReply **ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ListSessionsReply *all = NULL;
    int r = cmd_clients_get_some(c, 0, &all, e);

    while (r == 0 && all->more && all->n_sessions > 0) {
        _cleanup_(operator_message_freep) Kvcobra__ListSessionsReply *more = NULL;

        r = cmd_clients_get_some(c, all->sessions[all->n_sessions - 1]->session, &more, e);
        if (r == 0) {
            all->more = more->more && more->n_sessions > 0;
            r = operator_merge(&all->base, &more->base, e);
        }
    }
    if (r < 0)
        return r;

    *ret = take_ptr(all);
    return 0;
}

static int cmd_clients_list(kvc_client *c, const struct clients_options *o)
{
    _cleanup_(operator_message_freep) Kvcobra__ListSessionsReply *list = NULL;
    char tenant[TENANT_NAME_BYTES];
    const char *only = NULL;
    struct errmsg e = {""};

    if (o->tenant) {
        int code = tenant_name_find(c, o->tenant, tenant, NULL);

        if (code != COMMAND_OK)
            return code;
        only = tenant;
    }

    if (cmd_clients_get(c, &list, &e) < 0)
        return command_fail("%s", e.text);
    return o->operator.common.json ? cmd_clients_print_json(list, only) : cmd_clients_print_text(list, only);
}

/* ---- disconnect ---- */

static int cmd_clients_disconnect(kvc_client *c, const struct clients_options *o)
{
    _cleanup_(operator_message_freep) Kvcobra__DisconnectSessionReply *reply = NULL;
    _cleanup_(operator_message_freep) Kvcobra__ListSessionsReply *list = NULL;
    Kvcobra__DisconnectSession disconnect = KVCOBRA__DISCONNECT_SESSION__INIT;
    const Kvcobra__SessionInfo *x = NULL;
    struct errmsg e = {""};
    char program[32];

    if (cmd_clients_get(c, &list, &e) < 0)
        return command_fail("%s", e.text);
    for (size_t i = 0; i < list->n_sessions; i++)
        if (list->sessions[i]->session == o->session)
            x = list->sessions[i];
    if (!x)
        return command_fail("there is no session %ju; 'kvcobra clients' lists them", (uintmax_t) o->session);
    if (!x->connected)
        return command_fail("session %ju is not connected: its process %u holds pages until it exits",
                            (uintmax_t) x->session, x->pid);

    if (!operator_confirm(
            &o->operator,
            "Session %ju of process %u (%s, %s) loses its connection and the pages that it is writing. "
            "Pages that it holds stay until it exits. It may connect again.",
            (uintmax_t) x->session, x->pid, cmd_clients_program(x->pid, program), x->tenant))
        return COMMAND_FAILED;

    disconnect.session = o->session;
    if (operator_call(c, KVCOBRA__REQUEST__BODY_DISCONNECT_SESSION, &disconnect.base, &reply, &e) < 0)
        return command_fail("%s", e.text);

    if (o->operator.common.json)
        return message_json_report(json_pack("{s:I}", "session", (json_int_t) o->session), &reply->base);
    printf("disconnected session %ju, process %u\n", (uintmax_t) o->session, reply->pid);
    return COMMAND_OK;
}

static int cmd_clients_request(kvc_client *c, void *ctx)
{
    const struct clients_options *o = ctx;

    return o->session > 0 ? cmd_clients_disconnect(c, o) : cmd_clients_list(c, o);
}

static int cmd_clients_run(int argc, char **argv)
{
    struct clients_options o = {.tenant = NULL};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_clients_request, &o);
}

COMMAND(cmd_clients) = {
    .name = "clients",
    .summary = "list a daemon's clients and what they hold, or disconnect one",
    .run = cmd_clients_run,
    .rank = 180,
    .related = "status monitor",
};
