/*
 * kvcobra top: use, hit rates, leases and evictions of a running daemon, drawn anew every few seconds.
 *
 * top_view.h makes the lines, top_screen.h draws them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/clock.h"
#include "tools/command/operator.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/command/option.h"
#include "tools/operate/top_screen.h"
#include "tools/operate/top_view.h"

enum { OPT_INTERVAL = 1, OPT_SORT };
enum { PLAIN_WIDTH = 120 };

struct top_options {
    struct operator_options operator;
    double interval; /* seconds */
    enum top_sort sort;
};

static const char doc[] =
    "Watch a daemon: use, hit rates, leases and evictions, by tenant and by table. Keys: "
    "q quits, s sorts by the next column, g shows the last intervals, h shows help.\vRates and hit rates are "
    "those of the last "
    "interval. Without a terminal to draw on (a pipe, TERM=dumb), top prints the values since the start of "
    "the daemon once and exits. Programs read 'kvcobra status --json'. The "
    "environment variable NO_COLOR turns colours off.\n\n"
    "Examples:\n\n"
    "  kvcobra top --sort evictions\n"
    "  kvcobra top --interval 5";

static const struct argp_option options[] = {
    {"interval", OPT_INTERVAL, "SECONDS", 0, "Time between updates, 0.1 to 3600 (default 2)", 1},
    {"sort", OPT_SORT, "used|name|pages|leases|hit-rate|evictions", 0, "Order of tenants (default used)", 1},
    {0},
};

static enum top_sort cmd_top_parse_sort(const struct argp_state *state, const char *arg)
{
    for (int i = 0; top_sort_names[i]; i++)
        if (strcmp(arg, top_sort_names[i]) == 0)
            return (enum top_sort) i;
    argp_error(state, "--sort takes used, name, pages, leases, hit-rate or evictions, not '%s'", arg);
    return TOP_BY_USED;
}

static error_t cmd_top_parse(int key, char *arg, struct argp_state *state)
{
    struct top_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_INTERVAL:
        o->interval = option_double(state, "--interval", arg, 0.1, 3600);
        return 0;
    case OPT_SORT:
        o->sort = cmd_top_parse_sort(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_top_parse, NULL, doc, operator_socket_children, NULL, NULL};

static void cmd_top_moment_deinit(struct top_moment *m)
{
    operator_message_freep(&m->status);
    operator_message_freep(&m->tables);
    *m = (struct top_moment){0};
}

/* @ret: to be freed also on failure. Return: 0; a negative errno with a sentence. */
static int cmd_top_read(kvc_client *c, struct top_moment *ret, struct errmsg *e)
{
    int r;

    *ret = (struct top_moment){.seconds = clock_seconds()};
    r = operator_get_status(c, &ret->status, e);
    return r < 0 ? r : operator_list_tables(c, &ret->tables, e);
}

static int cmd_top_print_once(kvc_client *c, const struct top_look *look)
{
    _cleanup_(cmd_top_moment_deinit) struct top_moment now = {0};
    _cleanup_(freep) char *text = NULL;
    struct errmsg e = {""};

    if (cmd_top_read(c, &now, &e) < 0)
        return command_fail("%s", e.text);

    text = command_allocated(top_view(&now, NULL, look, PLAIN_WIDTH, 0));
    fputs(text, stdout);
    return COMMAND_OK;
}

static bool cmd_top_draw(const struct top_moment *now, const struct top_moment *before,
                         const struct top_look *look)
{
    _cleanup_(freep) char *text = NULL;
    unsigned width, height;

    screen_size(&width, &height);
    text = top_view(now, before->status ? before : NULL, look, width, height);
    return text && screen_draw(text);
}

static void cmd_top_press(char key, const struct top_history *history, struct top_look *look)
{
    if (key == 's')
        look->sort = (enum top_sort)((look->sort + 1) % TOP_N_SORTS);
    else if (key == 'g')
        look->history = look->history ? NULL : history;
    else if (key == 'h' || key == '?')
        look->help = !look->help;
}

/* Runs until a key or a signal quits. Return: 0; a negative errno with a sentence; 1: the terminal cannot be
 * drawn on. */
static int cmd_top_watch(kvc_client *c, double interval, struct top_look *look, struct errmsg *e)
{
    _cleanup_(cmd_top_moment_deinit) struct top_moment before = {0}, now = {0};
    struct top_history history = {.n = 0};
    int r = cmd_top_read(c, &now, e);

    while (r == 0) {
        enum screen_event event;
        char key = 0;

        if (!cmd_top_draw(&now, &before, look))
            return 1;

        event = screen_wait(interval, &key);
        if (event == SCREEN_QUIT)
            break;
        if (event == SCREEN_KEY)
            cmd_top_press(key, &history, look);
        if (event != SCREEN_TIMEOUT)
            continue;

        cmd_top_moment_deinit(&before);
        before = now;
        r = cmd_top_read(c, &now, e);
        if (r == 0)
            top_history_add(&history, &now, &before);
    }

    look->history = NULL; /* which ends here */
    return r;
}

static int cmd_top_request(kvc_client *c, void *ctx)
{
    const struct top_options *o = ctx;
    const char *no_color = getenv("NO_COLOR");
    struct top_look look = {.sort = o->sort};
    struct errmsg e = {""};
    int r;

    if (!screen_is_possible())
        return cmd_top_print_once(c, &look);

    look.keys = true;
    look.colour = !no_color || !*no_color; /* no-color.org */

    r = screen_enter();
    if (r < 0)
        return command_fail("cannot draw on this terminal: %s", strerror(-r));

    r = cmd_top_watch(c, o->interval, &look, &e);
    screen_leave();
    if (r < 0)
        return command_fail("%s", e.text);
    if (r > 0)
        return command_fail("cannot draw on this terminal: it was closed");

    return COMMAND_OK;
}

static int cmd_top_run(int argc, char **argv)
{
    struct top_options o = {.interval = 2};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_top_request, &o);
}

COMMAND(cmd_top) = {
    .name = "top",
    .summary = "watch use, hit rates and evictions of a daemon",
    .run = cmd_top_run,
    .rank = 170,
    .related = "status",
};
