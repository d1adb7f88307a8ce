/* kvcobra up: a daemon of the user's own in the background, and with --model a table of that model. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "proto/sockets.h"
#include "tools/command/client_model.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/human.h"
#include "tools/command/operator_call.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/operate/own_daemon.h"
#include "tools/operate/own_job.h"
#include "tools/operate/own_table.h"

enum { OPT_DAEMON = 1, OPT_MODEL, OPT_WAIT };

struct up_options {
    struct common_options common;
    const char *daemon, *model;
    bool wait;
};

static const char doc[] =
    "Start a daemon for the programs of this user in the background, unless it runs already, and print where "
    "it is. It "
    "needs neither root nor systemd. Its pool takes a quarter of the memory, or what kvcobrad.conf says, as "
    "it "
    "fills; it ends with the daemon. Its log is a file beside its sockets. 'kvcobra down' ends it.\n\n"
    "Until a table of a model is active, its engines share the bytes of their own caches.\n\n"
    "With --model, a table of the model is made, staged and activated in the background, which takes about a "
    "minute for a small model. The daemon serves meanwhile: an engine may start, and shares prompts from "
    "then "
    "on. 'kvcobra up' alone says how far it is; its log is beside the daemon's. 'kvcobra down' ends it, "
    "too.\vExamples:\n\n"
    "  kvcobra up\n"
    "  kvcobra up --model model.gguf";

static const struct argp_option options[] = {
    {"daemon", OPT_DAEMON, "PATH", 0, "The kvcobrad to start (default: beside this program, else in PATH)",
     1},
    {"model", OPT_MODEL, "MODEL", 0,
     "Make a table of this model: a GGUF file, a folder with config.json and safetensors, or the name of a "
     "model on Hugging Face that is in the cache of this user. Folders need the Python package with "
     "kvcobra[transformers]",
     1},
    {"wait", OPT_WAIT, NULL, 0, "With --model: return when the table is active", 1},
    {0},
};

static error_t cmd_up_parse(int key, char *arg, struct argp_state *state)
{
    struct up_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_DAEMON:
        o->daemon = arg;
        return 0;
    case OPT_MODEL:
        o->model = arg;
        return 0;
    case OPT_WAIT:
        o->wait = true;
        return 0;
    case ARGP_KEY_END:
        if (o->wait && !o->model)
            argp_error(state, "--wait needs --model");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_up_parse, NULL, doc, common_children, NULL, NULL};

/* ---- the table in the background ---- */

/* Starts a job for --model, unless one for the same model runs. */
static int cmd_up_start_job(const struct up_options *o, const struct own_daemon *d, struct own_job *job,
                            struct errmsg *e)
{
    char self[PATH_MAX];
    int r;

    if (job->pid > 0 && strcmp(job->model, o->model) != 0)
        return fail(e, -EBUSY,
                    "a table of %s is in the making: wait for it ('kvcobra up' says how far it is)",
                    job->model);
    if (job->pid > 0)
        return 0;

    r = find_kvcobra(self, e);
    if (r == 0)
        r = own_job_start(d, self, o->model, e);
    return r < 0 ? r : own_job_look(d, job, e);
}

static const char *cmd_up_job_state(const struct own_job *job)
{
    if (job->pid > 0)
        return "working";
    return job->failed ? "failed" : "active";
}

static void cmd_up_print_job(const struct own_job *job)
{
    if (job->pid > 0)
        terminal_print(stdout, 10, "table     of %s: %s; more in %s\n", job->model, job->last, job->log);
    else if (job->failed)
        terminal_print(stdout, 10, "table     of %s was not made: %s; more in %s\n", job->model, job->last,
                       job->log);
    else
        terminal_print(stdout, 10, "table     %s\n", job->last);
}

/* ---- the answer ---- */

static int cmd_up_print_json(const struct own_daemon *d, const char *socket, uint64_t pool_bytes,
                             bool started, const struct own_job *job)
{
    json_t *table = json_null();

    if (job->exists)
        table = json_pack("{s:o, s:s, s:o, s:s}", "model", utf8_json(job->model, strlen(job->model)), "state",
                          cmd_up_job_state(job), "last_line", utf8_json(job->last, strlen(job->last)), "log",
                          job->log);
    return report_json(json_pack("{s:b, s:I, s:s, s:s, s:I, s:o}", "started", started, "pid",
                                 (json_int_t) d->pid, "socket", socket, "log", d->log, "pool_bytes",
                                 (json_int_t) pool_bytes, "table", table));
}

enum { TABLE_BITS = 3 }; /* per number, of the tables that most models get */

/* What models without a table share, and what one would save. */
static void cmd_up_print_exact(const Kvcobra__ListTablesReply *tables)
{
    bool any = false;

    for (size_t i = 0; i < tables->n_tables; i++) {
        const Kvcobra__TableInfo *t = tables->tables[i];
        char model[DIGEST_HEX_BYTES];

        any = any || t->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE;
        if (t->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE && t->exact != 0)
            terminal_print(stdout, 10,
                           "exact     model %s has no table, and its engines share their own %.0f bits per "
                           "number: a table of %d bits saves %.0f %% (kvcobra up --model)\n",
                           digest_short(t->model_digest.data, model), t->bpd_code, TABLE_BITS,
                           100 * (1 - TABLE_BITS / t->bpd_code));
    }
    if (!any)
        terminal_print(
            stdout, 10,
            "exact     while a model has no table, engines of vLLM and transformers share the bytes "
            "of their own caches (setting exact)\n");
}

/* @started: by this process; else it was running. */
static int cmd_up_print(const struct up_options *o, const struct own_daemon *d, uint64_t pool_bytes,
                        bool started, const struct own_job *job, const Kvcobra__ListTablesReply *tables)
{
    const char *variable = getenv("KVCOBRA_SOCKET");
    char socket[OWN_DAEMON_PATH_BYTES], size[HUMAN_BYTES];

    (void) snprintf(socket, sizeof(socket), "%s/" SOCKET_CLIENTS, d->folder);
    if (variable && *variable && strcmp(variable, socket) != 0)
        command_note(&o->common, "KVCOBRA_SOCKET is %s here: programs use that daemon, until it is unset",
                     variable);
    if (o->common.json)
        return cmd_up_print_json(d, socket, pool_bytes, started, job);

    terminal_print(stdout, 10, "kvcobrad  %s, process %ld\n", started ? "started" : "runs", (long) d->pid);
    terminal_print(stdout, 10, "socket    %s; programs of this user find it\n", socket);
    terminal_print(stdout, 10, "pool      up to %s of memory; a restart loses what is in it\n",
                   human_bytes(pool_bytes, size));
    terminal_print(stdout, 10, "log       %s\n", d->log);
    cmd_up_print_exact(tables);
    if (job->exists)
        cmd_up_print_job(job);
    return fflush(stdout) == 0 ? COMMAND_OK : command_fail("the output could not be written");
}

/* Starts the daemon unless it runs. */
static int cmd_up_start(const struct up_options *o, struct own_daemon *d, bool *ret_started, struct errmsg *e)
{
    char self[PATH_MAX], program[PATH_MAX];
    int r = 0;

    *ret_started = d->pid == 0;
    if (*ret_started)
        r = find_daemon(o->daemon, self, program, e);
    return r < 0 || !*ret_started ? r : own_daemon_start(d, program, e);
}

static int cmd_up_run(int argc, char **argv)
{
    _cleanup_(own_daemon_deinit) struct own_daemon d = OWN_DAEMON_INIT;
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *status = NULL;
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *tables = NULL;
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    char operators[OWN_DAEMON_PATH_BYTES];
    struct up_options o = {.daemon = NULL};
    struct own_table table = {.name = NULL};
    struct own_job job = {.exists = false};
    _cleanup_(closep) int pidfd = -1;
    struct errmsg e = {""};
    bool started;
    int code;

    command_parse(&argp, argc, argv, &o);
    if (o.model && own_table_find_model(&table, o.model, &e) < 0) /* before anything is started */
        return command_fail("%s", e.text);
    if (own_daemon_open(&d, &e) < 0 || cmd_up_start(&o, &d, &started, &e) < 0)
        return command_fail("%s", e.text);

    (void) snprintf(operators, sizeof(operators), "%s/" SOCKET_OPERATORS, d.folder);
    if (client_open_at(KVC_SOCKET_OPERATORS, operators, 0, &c, &e) < 0 ||
        operator_get_status(c, &status, &e) < 0 || operator_list_tables(c, &tables, &e) < 0 ||
        (!own_job_is_this(&d) && own_job_look(&d, &job, &e) < 0) ||
        (!o.wait && o.model && cmd_up_start_job(&o, &d, &job, &e) < 0))
        return command_fail("%s", e.text);
    code = cmd_up_print(&o, &d, status->pool_bytes, started, &job, tables);
    if (code != COMMAND_OK || !o.wait)
        return code;

    pidfd = own_job_pidfd(&d, &job);
    own_daemon_deinit(&d); /* others may act while the table is made */
    if (pidfd >= 0)
        (void) own_job_await(pidfd, -1); /* it may be making this table, which is not made twice */
    return own_table_make(&table, c, operators, &o.common);
}

COMMAND(cmd_up) = {
    .name = "up",
    .summary = "start a daemon of your own in the background",
    .run = cmd_up_run,
    .rank = 120,
    .related = "down doctor",
};
