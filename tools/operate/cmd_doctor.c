/* kvcobra doctor: finds out why sharing does not work on this machine. The checks are in doctor_check.c. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/command/client_model.h"
#include "tools/command/command.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/operate/doctor_check.h"
#include "tools/operate/doctor_config.h"

enum { OPT_SOCKET = 1, OPT_OPERATOR_SOCKET, OPT_TIMEOUT, OPT_CONFIG };
enum { SUBJECT_COLUMNS = 22 };

struct doctor_options {
    struct common_options common;
    const char *socket, *operator_socket, *config;
    uint32_t timeout_ms; /* 0: not given */
};

static const char doc[] =
    "Check this machine and its daemon: versions, sockets and their groups, memory, "
    "descriptors, kernels for the "
    "processor, clock, systemd, configuration, tenants, tables. It changes nothing. The exit status "
    "is 1 if something is wrong.\v"
    "Lines begin with ok, note (works, but may surprise) or wrong.\n\n"
    "Examples:\n\n"
    "  kvcobra doctor\n"
    "  kvcobra doctor --json";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0, "The clients' socket (default: as for kvcobra ping)", 1},
    {"operator-socket", OPT_OPERATOR_SOCKET, "PATH", 0,
     "The operators' socket (default: as for kvcobra status)", 1},
    {"config", OPT_CONFIG, "FILE", 0,
     "The daemon's configuration (default: " DOCTOR_CONFIG_PATH ", if it is there)", 1},
    OPTION_TIMEOUT(OPT_TIMEOUT, 1),
    {0},
};

static error_t cmd_doctor_parse(int key, char *arg, struct argp_state *state)
{
    struct doctor_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_OPERATOR_SOCKET:
        o->operator_socket = arg;
        return 0;
    case OPT_CONFIG:
        o->config = arg;
        return 0;
    case OPT_TIMEOUT:
        o->timeout_ms = option_timeout_ms(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_doctor_parse, NULL, doc, common_children, NULL, NULL};

static const char *cmd_doctor_result_name(enum doctor_result r)
{
    static const char *const names[] = {[DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_WRONG] = "wrong"};

    return names[r];
}

static int cmd_doctor_print_json(const struct doctor *d)
{
    json_t *all = json_array();

    for (size_t i = 0; i < d->n; i++) {
        const struct doctor_finding *f = &d->findings[i];
        json_t *item = json_pack("{s:s, s:s, s:o}", "result", cmd_doctor_result_name(f->result), "subject",
                                 f->subject, "text", utf8_json(f->text, strlen(f->text)));

        if (json_array_append_new(all, item) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }
    return report_json(all);
}

static void cmd_doctor_print_text(const struct doctor *d)
{
    for (size_t i = 0; i < d->n; i++)
        terminal_print(stdout, SUBJECT_COLUMNS, "%-5s %-16s%s\n",
                       cmd_doctor_result_name(d->findings[i].result), d->findings[i].subject,
                       d->findings[i].text);
}

static int cmd_doctor_run(int argc, char **argv)
{
    _cleanup_(kvc_client_freep) kvc_client *control = NULL;
    struct doctor_options o = {.socket = NULL};
    struct doctor d = {.n = 0};
    size_t n_wrong = 0;
    int code = COMMAND_OK;

    command_parse(&argp, argc, argv, &o);
    doctor_check_machine(&d);
    doctor_check_config(&d, o.config);
    doctor_check_sockets(&d, o.socket, o.operator_socket, o.timeout_ms, &control);
    if (control)
        doctor_check_daemon(&d, control);

    for (size_t i = 0; i < d.n; i++)
        n_wrong += d.findings[i].result == DOCTOR_WRONG;
    if (o.common.json)
        code = cmd_doctor_print_json(&d);
    else
        cmd_doctor_print_text(&d);
    if (code == COMMAND_OK && n_wrong > 0)
        return command_fail("%zu of %zu checks found something wrong", n_wrong, d.n);
    return code;
}

const struct command cmd_doctor = {"doctor", "check sockets, memory, versions and tables of this machine",
                                   cmd_doctor_run};
