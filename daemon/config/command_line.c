/* Options of kvcobrad; see command_line.h. */
#include "daemon/config/command_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"

/* Keys of options. The key of a setting is its short option, or KEY_SETTING plus the number of its row. */
enum {
    KEY_CONFIG = 'c',
    KEY_CHECK = 0x100,
    KEY_LISTEN_FD,
    KEY_OPERATOR_FD,
    KEY_READY_FD,
    KEY_NO_OPERATOR,
    KEY_SETTING,
};

static const struct argp_option command_line_only[] = {
    {"config", KEY_CONFIG, "FILE", 0, "Read settings from FILE, see kvcobrad.conf(5); options override it",
     0},
    {"check-config", KEY_CHECK, "FILE", 0, "Check FILE, print the result and exit", 0},
    {"listen-fd", KEY_LISTEN_FD, "FD", 0, "Descriptor of a listening client socket, instead of --socket", 0},
    {"operator-fd", KEY_OPERATOR_FD, "FD", 0,
     "Descriptor of a listening operator socket, instead of --operator-socket", 0},
    {"ready-fd", KEY_READY_FD, "FD", 0, "Descriptor that gets a byte and is closed once the sockets listen",
     0},
    {"no-operator-socket", KEY_NO_OPERATOR, NULL, 0, "Start without an operator socket", 0},
};

enum { N_ONLY = sizeof(command_line_only) / sizeof(command_line_only[0]) };

static const char doc[] =
    "Serve compressed key-value caches of language models to the processes of this host.\v"
    "kvcobrad runs in the foreground until SIGTERM or SIGINT and logs to standard error. Under systemd, "
    "kvcobrad "
    "reports when it is ready, and sockets that systemd passes replace the configured paths; the socket "
    "named "
    "\"operator\" is the operator socket. \"kvcobra table\" manages tables, \"kvcobra status\" prints the "
    "state of "
    "the daemon.";

/* ---- options ---- */

static int command_line_key(const struct setting *s)
{
    return s->letter ? s->letter : KEY_SETTING + (int) (s - settings);
}

static const struct setting *command_line_setting_of_key(int key)
{
    for (size_t i = 0; i < settings_n; i++)
        if (command_line_key(&settings[i]) == key)
            return &settings[i];
    return NULL;
}

const struct setting *command_line_setting(const struct argp_option *o)
{
    return command_line_setting_of_key(o->key);
}

static void command_line_add_heading(struct argp_option **at, enum setting_group group)
{
    static char titles[SETTINGS_N_GROUPS][SETTINGS_VALUE_BYTES];

    (void) snprintf(titles[group], sizeof(titles[group]), "%s:", settings_group_title(group));
    *(*at)++ = (struct argp_option){.doc = titles[group], .group = (int) group + 1};
}

const struct argp_option *command_line_options(void)
{
    static struct argp_option options[SETTINGS_N_GROUPS + N_ONLY + SETTINGS_MAX + 1];
    struct argp_option *at = options;

    if (options[0].doc)
        return options;

    for (unsigned group = 0; group < SETTINGS_N_GROUPS; group++) {
        command_line_add_heading(&at, (enum setting_group) group);
        for (size_t i = 0; group == SETTINGS_SOCKETS && i < N_ONLY; i++)
            *at++ = command_line_only[i];
        for (size_t i = 0; i < settings_n; i++)
            if (settings[i].group == group)
                *at++ = (struct argp_option){.name = settings[i].name,
                                             .key = command_line_key(&settings[i]),
                                             .arg = settings[i].argument,
                                             .doc = settings[i].help};
    }

    return options;
}

/* Called by argp for the help text of an option. argp frees the result, unless it is @text. */
static char *command_line_help(int key, const char *text, void *input)
{
    const struct setting *s = command_line_setting_of_key(key);
    char value[SETTINGS_VALUE_BYTES], *help;

    (void) input;
    if (!s || !text)
        return (char *) text;
    if (asprintf(&help, "%s (default %s%s)", text, s->default_from ? "--" : "", settings_default(s, value)) <
        0)
        return (char *) text;
    return help;
}

/* ---- parsing ---- */

struct command_line_input {
    struct config *config;
    const char *file, *check;
    bool applies_settings; /* false: only find the file; true: the file was read, options override it */
};

static int command_line_descriptor(struct argp_state *state, const char *arg)
{
    uint64_t v;

    if (config_parse_bytes(arg, &v) < 0 || v < 3 || v > 1u << 20)
        argp_error(state, "\"%s\" is not the number of a passed descriptor (3 or more)", arg);
    return (int) v;
}

static error_t command_line_set(const struct setting *s, const char *arg, struct argp_state *state)
{
    const struct command_line_input *in = state->input;
    struct errmsg e;

    if (!s)
        return ARGP_ERR_UNKNOWN;
    if (in->applies_settings && config_set(in->config, s->name, arg, &e) < 0)
        argp_error(state, "--%s", e.text);
    return 0;
}

static error_t command_line_parse(int key, char *arg, struct argp_state *state)
{
    struct command_line_input *in = state->input;

    switch (key) {
    case KEY_CONFIG:
        in->file = arg;
        return 0;
    case KEY_CHECK:
        in->check = arg;
        return 0;
    case KEY_LISTEN_FD:
        in->config->listen_fd = command_line_descriptor(state, arg);
        return 0;
    case KEY_OPERATOR_FD:
        in->config->operator_fd = command_line_descriptor(state, arg);
        return 0;
    case KEY_READY_FD:
        in->config->ready_fd = command_line_descriptor(state, arg);
        return 0;
    case KEY_NO_OPERATOR:
        in->config->operator_socket_path = NULL;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; kvcobrad takes no other arguments", arg);
        return 0;
    }

    return command_line_set(command_line_setting_of_key(key), arg, state);
}

static void command_line_apply(const struct command_line *l, struct command_line_input *in)
{
    const struct argp argp = {.options = command_line_options(),
                              .parser = command_line_parse,
                              .doc = doc,
                              .help_filter = command_line_help};

    (void) argp_parse(&argp, l->argc, l->argv, 0, NULL, in);
}

int command_line_load(const struct command_line *l, struct config *c, const char **ret_check,
                      struct errmsg *e)
{
    struct command_line_input in = {.config = c};
    int r;

    config_init(c);
    c->quota_bytes = 0;
    c->gpu_quota_bytes = 0;

    argp_err_exit_status = EXIT_USAGE;
    command_line_apply(l, &in);
    *ret_check = in.check;

    if (in.check || in.file) {
        r = config_load(c, in.check ? in.check : in.file, e);
        if (r < 0)
            return r;
    }

    if (!in.check) {
        in.applies_settings = true;
        command_line_apply(l, &in);
    }

    config_fill_quotas(c);
    return config_check(c, e);
}
