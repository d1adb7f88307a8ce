/* kvcobra monitor: prints the events of a daemon as they happen. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/json_large.h"
#include "tools/command/operator.h"
#include "tools/command/operator_call.h"
#include "tools/command/option.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"

enum { OPT_LAST = 1, OPT_EVENT, OPT_TENANT, OPT_COUNT, OPT_LEVEL };
enum { POLL_MS = 200, LAST_MAX = 512 };

struct monitor_options {
    struct operator_options operator;
    const char *event, *tenant;
    uint64_t last, count; /* count 0: no end */
    uint32_t level;
};

static const char doc[] =
    "Print the events of a daemon's log as they happen: sessions, tables, quotas, evictions by operators, "
    "memory "
    "that is reclaimed, errors. Ctrl-C ends it. Reading and writing pages makes no events.\vThe daemon keeps "
    "its "
    "newest 512 events also if log-level hides them. With --json each line is an object.\n\n"
    "Examples:\n\n"
    "  kvcobra monitor --last 20\n"
    "  kvcobra monitor --event session-open --json\n"
    "  kvcobra monitor --last 3 --count 1";

static const struct argp_option options[] = {
    {"last", OPT_LAST, "N", 0, "Begin with the last N events (default 0)", 1},
    {"count", OPT_COUNT, "N", 0, "End after N events", 1},
    {"event", OPT_EVENT, "NAME", 0, "Only events of this name, such as session-open or quota", 1},
    {"tenant", OPT_TENANT, "TENANT", 0, "Only events with this tenant, named as in 'kvcobra status'", 1},
    {"level", OPT_LEVEL, "N", 0,
     "Only events of this level or more important ones: 3 errors, 4 warnings, 5 notices, 6 all "
     "(default 6)",
     1},
    {0},
};

static error_t cmd_monitor_parse(int key, char *arg, struct argp_state *state)
{
    struct monitor_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_LAST:
        o->last = option_uint(state, "--last", arg, 0, LAST_MAX);
        return 0;
    case OPT_COUNT:
        o->count = option_uint(state, "--count", arg, 1, UINT64_MAX);
        return 0;
    case OPT_LEVEL:
        o->level = (uint32_t) option_uint(state, "--level", arg, 0, 7);
        return 0;
    case OPT_EVENT:
        o->event = arg;
        return 0;
    case OPT_TENANT:
        o->tenant = arg;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_monitor_parse, NULL, doc, operator_view_children, NULL, NULL};

/* ---- one event ---- */

static bool cmd_monitor_wants(const struct monitor_options *o, const Kvcobra__LogEvent *x,
                              const json_t *fields)
{
    const char *event = json_string_value(json_object_get(fields, "event"));
    const char *tenant = json_string_value(json_object_get(fields, "tenant"));

    if (x->level > o->level || (o->event && (!event || strcmp(event, o->event) != 0)))
        return false;
    return !o->tenant || (tenant && strcmp(tenant, o->tenant) == 0);
}

static void cmd_monitor_format_time(uint64_t time_us, const char *format, char *ret, size_t room)
{
    time_t seconds = (time_t) (time_us / 1000000);
    struct tm tm;

    ret[0] = '\0';
    if (localtime_r(&seconds, &tm))
        (void) strftime(ret, room, format, &tm);
}

/* "14:02:07 notice  quota  tenant=uid-0 bytes=1048576": fields as in the log, for people. */
static void cmd_monitor_print_text(const Kvcobra__LogEvent *x, json_t *fields)
{
    static const char *const levels[] = {"emerg",   "alert",  "crit", "error",
                                         "warning", "notice", "info", "debug"};
    _cleanup_(freep) char *text = NULL;
    char time[16];
    const char *key;
    json_t *value;
    size_t n;
    FILE *line = open_memstream(&text, &n);

    if (!line)
        return;

    cmd_monitor_format_time(x->time_us, "%H:%M:%S", time, sizeof(time));
    fprintf(line, "%s %-7s", time, levels[x->level & 7]);
    json_object_foreach(fields, key, value)
    {
        _cleanup_(freep) char *number = NULL;
        const char *word = json_string_value(value);

        if (!word)
            word = number = json_dumps(value, JSON_ENCODE_ANY);
        fprintf(line, strcmp(key, "event") == 0 ? " %s%s" : "  %s=%s", strcmp(key, "event") == 0 ? "" : key,
                word ? word : "?");
    }
    fputc('\n', line);
    if (fclose(line) == 0)
        terminal_print(stdout, 17, "%s", text);
}

static void cmd_monitor_print_json(const Kvcobra__LogEvent *x, json_t *fields)
{
    char time[40];

    cmd_monitor_format_time(x->time_us, "%Y-%m-%dT%H:%M:%S%z", time, sizeof(time));
    (void) json_object_set_new(fields, "number", json_integer((json_int_t) x->number));
    (void) json_object_set_new(fields, "time", json_string(time));
    (void) json_object_set_new(fields, "level", json_integer(x->level));
    (void) json_dumpf(fields, stdout, 0);
    putchar('\n');
}

/* Return: whether it was printed. */
static bool cmd_monitor_show(const struct monitor_options *o, const Kvcobra__LogEvent *x)
{
    _cleanup_(freep) char *text = x->json.len > 0 ? strndup((const char *) x->json.data, x->json.len) : NULL;
    json_t *fields = text ? json_large_load(text, NULL) : NULL;
    bool wanted = json_is_object(fields) && cmd_monitor_wants(o, x, fields);

    if (wanted && o->operator.common.json)
        cmd_monitor_print_json(x, fields);
    else if (wanted)
        cmd_monitor_print_text(x, fields);
    json_decref(fields);
    return wanted;
}

/* ---- the stream ---- */

/* What was seen so far. */
struct monitor_place {
    uint64_t after, n_shown;
};

/* Lines of the log behind number @after, oldest first. */
static int cmd_monitor_get(kvc_client *c, uint64_t after, Kvcobra__ListEventsReply **ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ListEventsReply *got = NULL;
    Kvcobra__ListEvents list = KVCOBRA__LIST_EVENTS__INIT;
    int r;

    list.after = after;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_LIST_EVENTS, &list.base, &got, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < got->n_events; i++) {
        if (got->events[i]->number <= after)
            return fail(e, -EPROTO, "kvcobrad's answer is not valid: events are not in order");
        after = got->events[i]->number;
    }

    *ret = take_ptr(got);
    return 0;
}

/* Return: 0; a negative errno with a sentence. */
static int cmd_monitor_read(kvc_client *c, const struct monitor_options *o, struct monitor_place *at,
                            bool *ret_more, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ListEventsReply *got = NULL;
    int r = cmd_monitor_get(c, at->after, &got, e);

    if (r < 0)
        return r;

    if (got->last < at->after) { /* the daemon was restarted */
        at->after = 0;
        *ret_more = true;
        return 0;
    }

    for (size_t i = 0; i < got->n_events && (o->count == 0 || at->n_shown < o->count); i++) {
        const Kvcobra__LogEvent *x = got->events[i];

        if (x->number > at->after + 1 && at->after > 0)
            command_note(&o->operator.common, "%ju events were lost",
                         (uintmax_t) (x->number - at->after - 1));
        at->after = x->number;
        at->n_shown += cmd_monitor_show(o, x);
    }
    if (got->n_events == 0)
        at->after = got->last;
    *ret_more = at->after < got->last;
    return 0;
}

static int cmd_monitor_request(kvc_client *c, void *ctx)
{
    const struct monitor_options *o = ctx;
    _cleanup_(operator_message_freep) Kvcobra__ListEventsReply *newest = NULL;
    struct monitor_place at = {0};
    struct errmsg e = {""};
    bool lost = false;

    if (cmd_monitor_get(c, UINT64_MAX, &newest, &e) < 0)
        return command_fail("%s", e.text);

    at.after = newest->last > o->last ? newest->last - o->last : 0;
    while (o->count == 0 || at.n_shown < o->count) {
        bool more = false;
        int r = cmd_monitor_read(c, o, &at, &more, &e);

        if (r < 0 && r != -ENOTCONN)
            return command_fail("%s", e.text);
        if (r < 0 && !lost)
            command_note(&o->operator.common, "the daemon is gone; waiting for it");
        lost = r < 0;
        if (fflush(stdout) != 0)
            return COMMAND_FAILED; /* the exit prints the sentence */
        if (!more)
            (void) poll(NULL, 0, POLL_MS);
    }

    return COMMAND_OK;
}

static int cmd_monitor_run(int argc, char **argv)
{
    struct monitor_options o = {.level = 6};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_monitor_request, &o);
}

COMMAND(cmd_monitor) = {
    .name = "monitor",
    .summary = "print a daemon's events as they happen",
    .run = cmd_monitor_run,
    .rank = 190,
    .related = "clients top",
};
