/* kvcobra doctor: finds out why sharing does not work on this machine. The checks are in doctor_check.c,
 * but for that of the configuration. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/client_model.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/operate/doctor_check.h"

enum { OPT_SOCKET = 1, OPT_OPERATOR_SOCKET, OPT_TIMEOUT, OPT_CONFIG };
enum { SUBJECT_COLUMNS = 22 };
enum { LINES_MAX = 8 }; /* of the configuration, with an error each */

#define CONFIG_PATH "/etc/kvcobra/kvcobrad.conf" /* of the unit */

struct doctor_options {
    struct common_options common;
    const char *socket, *operator_socket, *config;
    uint32_t timeout_ms; /* 0: not given */
};

static const char doc[] =
    "Check this machine and its daemon: versions, sockets and their groups, memory, "
    "descriptors, kernels for the "
    "processor, clock, systemd, configuration, tiers, tenants, tables. It changes nothing. The exit status "
    "is 1 if something is wrong.\v"
    "Lines begin with ok, note (works, but may surprise) or wrong.\n\n"
    "Examples:\n\n"
    "  kvcobra doctor\n"
    "  kvcobra doctor --json";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0, "The clients' socket (default: as for kvcobra ping)", 1},
    {"operator-socket", OPT_OPERATOR_SOCKET, "PATH", 0,
     "The operators' socket (default: as for kvcobra status)", 1},
    {"config", OPT_CONFIG, "FILE", 0, "The daemon's configuration (default: " CONFIG_PATH ", if it is there)",
     1},
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
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_doctor_parse, NULL, doc, common_children, NULL, NULL};

/* ---- configuration ---- */

/* A warning, or an error, without the program's name in front. The other lines describe what is set. */
static void cmd_doctor_add_config_line(struct doctor *d, const char *line, bool failed)
{
    static const char name[] = "kvcobrad: ";

    if (strncmp(line, name, strlen(name)) == 0)
        line += strlen(name);
    if (failed)
        doctor_add(d, DOCTOR_WRONG, DOCTOR_CONFIG, "%s", line);
    else if (strstr(line, ": warning: "))
        doctor_add(d, DOCTOR_NOTE, DOCTOR_CONFIG, "%s", line);
}

/* @program and @path go through the environment: no shell reads them as its own words. */
static FILE *cmd_doctor_run_daemon(const char *program, const char *path)
{
    if (setenv("KVCOBRA_DOCTOR_PROGRAM", program, 1) < 0 || setenv("KVCOBRA_DOCTOR_CONFIG", path, 1) < 0)
        return NULL;
    /* NOLINTNEXTLINE(cert-env33-c): a constant */
    return popen("exec \"$KVCOBRA_DOCTOR_PROGRAM\" --check-config \"$KVCOBRA_DOCTOR_CONFIG\" 2>&1", "re");
}

static void cmd_doctor_read_config(struct doctor *d, const char *program, const char *path)
{
    _cleanup_(freep) char *line = NULL;
    char *lines[LINES_MAX] = {NULL};
    FILE *f = cmd_doctor_run_daemon(program, path);
    size_t room = 0, n = 0;
    int status;

    if (!f) {
        doctor_add(d, DOCTOR_NOTE, DOCTOR_CONFIG, "cannot run %s: %s", program, strerror(errno));
        return;
    }

    while (getline(&line, &room, f) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        if (n < LINES_MAX && (lines[n] = strdup(line)))
            n++;
    }
    status = pclose(f);
    for (size_t i = 0; i < n; i++) {
        cmd_doctor_add_config_line(d, lines[i], status != 0);
        free(lines[i]);
    }
    if (status == 0)
        doctor_add(d, DOCTOR_OK, DOCTOR_CONFIG, "%s can be read", path);
}

/*
 * Runs `kvcobrad --check-config`, which reads the configuration as the next start would, and adds a finding
 * for each line that it prints. @path: NULL: CONFIG_PATH, and nothing is added if there is no such file or no
 * kvcobrad.
 */
static void cmd_doctor_check_config(struct doctor *d, const char *path)
{
    char self[PATH_MAX], program[PATH_MAX];
    bool is_given = path != NULL;
    struct errmsg e = {""};

    path = is_given ? path : CONFIG_PATH;
    if (!is_given && access(path, F_OK) < 0)
        return;
    if (access(path, R_OK) < 0) {
        doctor_add(d, errno == EACCES ? DOCTOR_NOTE : DOCTOR_WRONG, DOCTOR_CONFIG,
                   "this user cannot read %s: %s", path, strerror(errno));
        return;
    }
    if (find_daemon(NULL, self, program, &e) == 0)
        cmd_doctor_read_config(d, program, path);
    else if (is_given)
        doctor_add(d, DOCTOR_NOTE, DOCTOR_CONFIG, "%s was not checked: %s", path, e.text);
}

/* ---- output ---- */

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
    cmd_doctor_check_config(&d, o.config);
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

COMMAND(cmd_doctor) = {
    .name = "doctor",
    .summary = "check sockets, memory, versions and tables of this machine",
    .run = cmd_doctor_run,
    .rank = 140,
    .related = "ping status",
};
