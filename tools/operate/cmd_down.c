/* kvcobra down: ends the daemon that kvcobra up or kvcobrad --user started. */
#include <stdbool.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/operate/own_daemon.h"
#include "tools/operate/own_job.h"

static const char doc[] =
    "End this user's own daemon, which 'kvcobra up' or 'kvcobrad --user' started, and wait for its end. Its "
    "pool is lost; tables stay, and programs that run continue without it. A table that 'kvcobra up --model' "
    "makes in the background is given up. If no such daemon runs, nothing is done."
    "\vExample:\n\n"
    "  kvcobra down";

static const struct argp argp = {NULL, NULL, NULL, doc, common_children, NULL, NULL};

static int cmd_down_run(int argc, char **argv)
{
    _cleanup_(own_daemon_deinit) struct own_daemon d = OWN_DAEMON_INIT;
    struct common_options o = {0};
    struct errmsg e = {""};
    bool gave_up;

    command_parse(&argp, argc, argv, &o);
    if (own_daemon_open(&d, &e) < 0)
        return command_fail("%s", e.text);
    gave_up = own_job_end(&d);
    if (d.pid > 0 && own_daemon_end(&d, &e) < 0)
        return command_fail("%s", e.text);

    if (o.json)
        return report_json(json_pack("{s:b, s:I, s:b}", "ended", d.pid > 0, "pid", (json_int_t) d.pid,
                                     "table_given_up", gave_up));
    if (d.pid > 0)
        terminal_print(stdout, 2, "kvcobrad, process %ld, has ended; its pool is lost, its tables stay\n",
                       (long) d.pid);
    else
        terminal_print(stdout, 2, "no kvcobrad of this user runs\n");
    if (gave_up)
        terminal_print(stdout, 2, "the table that was in the making was given up\n");
    return COMMAND_OK;
}

COMMAND(cmd_down) = {
    .name = "down",
    .summary = "end the daemon that 'kvcobra up' started",
    .run = cmd_down_run,
    .rank = 130,
    .related = "up",
};
