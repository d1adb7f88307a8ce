/*
 * kvcobra top: use, hit rates, leases and evictions of a running daemon, drawn anew every few seconds.
 *
 * top_view.h makes the lines, top_screen.h draws them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/command/clock.h"
#include "tools/command/operator.h"
#include "tools/command/option.h"
#include "tools/operate/top_screen.h"
#include "tools/operate/top_view.h"

enum { OPT_INTERVAL = 1 };
enum { PLAIN_WIDTH = 120 };

struct top_options {
    struct operator_options operator;
    double interval; /* seconds */
};

static const char doc[] = "Watch a daemon: use, hit rates, leases and evictions, by tenant and by table. q "
                          "or Ctrl-C quits.\vRates and hit rates are those of the last interval. Without a "
                          "terminal to draw on (a pipe, TERM=dumb), top prints the values since the start of "
                          "the daemon once and exits. Programs read 'kvcobra status --json'.\n\n"
                          "  kvcobra top --socket /run/user/1000/operator.sock --interval 5";

static const struct argp_option options[] = {
    {"interval", OPT_INTERVAL, "SECONDS", 0, "Time between updates, 0.1 to 3600 (default 2)", 1},
    {0},
};

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
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_top_parse, NULL, doc, operator_socket_children, NULL, NULL};

/* One reading of the daemon, and the view's pointers to it. */
struct top_reading {
    kvc_status *status;
    kvc_table_info *tables;
    struct top_moment moment;
};

static void cmd_top_reading_deinit(struct top_reading *l)
{
    l->status = kvc_status_free(l->status);
    free(l->tables);
    *l = (struct top_reading){0};
}

static int cmd_top_read(kvc_client *c, struct top_reading *ret)
{
    _cleanup_(cmd_top_reading_deinit) struct top_reading l = {0};
    const kvc_status_sizes sizes = KVC_STATUS_SIZES;
    size_t n = 0;
    int r;

    r = kvc_status_get(c, &sizes, &l.status);
    if (r < 0)
        return r;

    r = kvc_table_list(c, sizeof(*l.tables), &l.tables, &n);
    if (r < 0)
        return r;

    l.moment = (struct top_moment){clock_seconds(), l.status, l.tables, n};
    cmd_top_reading_deinit(ret);
    *ret = l;
    l = (struct top_reading){0};
    return 0;
}

static int cmd_top_print_once(kvc_client *c)
{
    _cleanup_(cmd_top_reading_deinit) struct top_reading l = {0};
    _cleanup_(freep) char *text = NULL;

    if (cmd_top_read(c, &l) < 0)
        return operator_fail(c);

    text = top_view(&l.moment, NULL, PLAIN_WIDTH, 0);
    if (!text)
        return command_fail("out of memory");
    fputs(text, stdout);
    return COMMAND_OK;
}

static bool cmd_top_draw(const struct top_reading *now, const struct top_reading *before)
{
    _cleanup_(freep) char *text = NULL;
    unsigned width, height;

    screen_size(&width, &height);
    text = top_view(&now->moment, before->status ? &before->moment : NULL, width, height);
    return text && screen_draw(text);
}

/* Runs until a key or a signal quits. Return: 0; -errno of the client; 1: the terminal cannot be drawn on. */
static int cmd_top_watch(kvc_client *c, double interval)
{
    _cleanup_(cmd_top_reading_deinit) struct top_reading before = {0}, now = {0};
    int r = cmd_top_read(c, &now);

    while (r == 0) {
        enum screen_event event;

        if (!cmd_top_draw(&now, &before))
            return 1;

        event = screen_wait(interval);
        if (event == SCREEN_QUIT)
            return 0;
        if (event == SCREEN_RESIZED)
            continue;

        cmd_top_reading_deinit(&before);
        before = now;
        now = (struct top_reading){0};
        r = cmd_top_read(c, &now);
    }

    return r;
}

static int cmd_top_request(kvc_client *c, void *ctx)
{
    const struct top_options *o = ctx;
    int r;

    if (!screen_is_possible())
        return cmd_top_print_once(c);

    r = screen_enter();
    if (r < 0)
        return command_fail("cannot draw on this terminal: %s", strerror(-r));

    r = cmd_top_watch(c, o->interval);
    screen_leave();
    if (r < 0)
        return operator_fail(c);
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

const struct command cmd_top = {"top", "watch use, hit rates and evictions of a daemon", cmd_top_run};
