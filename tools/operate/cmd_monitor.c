/* kvcobra monitor: prints the events of a daemon as they happen. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "client/kvcobra-operator.h"
#include "tools/command/json_large.h"
#include "tools/command/operator.h"
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
    {"tenant", OPT_TENANT, "NAME", 0, "Only events with this tenant, named as in 'kvcobra status'", 1},
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
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_monitor_parse, NULL, doc, operator_view_children, NULL, NULL};

/* ---- one event ---- */

static bool cmd_monitor_wants(const struct monitor_options *o, const kvc_event *x, const json_t *fields)
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
static void cmd_monitor_print_text(const kvc_event *x, json_t *fields)
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

static void cmd_monitor_print_json(const kvc_event *x, json_t *fields)
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
static bool cmd_monitor_show(const struct monitor_options *o, const kvc_event *x)
{
    json_t *fields = json_large_load(x->json, NULL);
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

/* Return: 0; -errno of the client. */
static int cmd_monitor_read(kvc_client *c, const struct monitor_options *o, struct monitor_place *at,
                            bool *ret_more)
{
    _cleanup_(freep) kvc_event *events = NULL;
    uint64_t last;
    size_t n;
    int r = kvc_event_list(c, at->after, sizeof(*events), &events, &n, &last);

    if (r < 0)
        return r;

    if (last < at->after) { /* the daemon was restarted */
        at->after = 0;
        *ret_more = true;
        return 0;
    }

    for (size_t i = 0; i < n && (o->count == 0 || at->n_shown < o->count); i++) {
        if (events[i].number > at->after + 1 && at->after > 0)
            command_note(&o->operator.common, "%ju events were lost",
                         (uintmax_t) (events[i].number - at->after - 1));
        at->after = events[i].number;
        at->n_shown += cmd_monitor_show(o, &events[i]);
    }
    if (n == 0)
        at->after = last;
    *ret_more = at->after < last;
    return 0;
}

static int cmd_monitor_request(kvc_client *c, void *ctx)
{
    const struct monitor_options *o = ctx;
    _cleanup_(freep) kvc_event *events = NULL;
    struct monitor_place at = {0};
    bool lost = false;
    uint64_t newest;
    size_t n;

    if (kvc_event_list(c, UINT64_MAX, sizeof(*events), &events, &n, &newest) < 0)
        return operator_fail(c);

    at.after = newest > o->last ? newest - o->last : 0;
    while (o->count == 0 || at.n_shown < o->count) {
        bool more = false;
        int r = cmd_monitor_read(c, o, &at, &more);

        if (r < 0 && r != -ENOTCONN)
            return operator_fail(c);
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

const struct command cmd_monitor = {"monitor", "print a daemon's events as they happen", cmd_monitor_run};
