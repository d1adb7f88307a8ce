/* Options of kvcobrad; see command_line.h. */
#include "daemon/config/command_line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/completion.h"
#include "base/errmsg.h"
#include "base/nearest.h"
#include "daemon/config/config.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"
#include "daemon/config/user_folders.h"

/* Keys of options. The key of a setting is its short option, or KEY_SETTING plus the number of its row. */
enum {
    KEY_CONFIG = 'c',
    KEY_CHECK = 0x100,
    KEY_LISTEN_FD,
    KEY_OPERATOR_FD,
    KEY_READY_FD,
    KEY_NO_OPERATOR,
    KEY_PRINT,
    KEY_USER,
    KEY_ALLOW_CORE,
    KEY_SETTING,
};

static const struct argp_option command_line_only[] = {
    {"user", KEY_USER, NULL, 0,
     "Serve this user's programs: sockets in $XDG_RUNTIME_DIR/kvcobra or, without that variable, in "
     "/run/user/UID/kvcobra or /tmp/kvcobra-UID; state in ~/.local/state/kvcobra, settings in "
     "~/.config/kvcobra/kvcobrad.conf, a pool of a quarter of the memory, exact = yes",
     0},
    {"config", KEY_CONFIG, "FILE", 0,
     "Read settings from FILE, then from FILE.d/*.conf, see kvcobrad.conf(5); options override them", 0},
    {"check-config", KEY_CHECK, "FILE", 0,
     "Check FILE and FILE.d/*.conf with the other options, print the result and exit", 0},
    {"print-config", KEY_PRINT, NULL, 0, "Print all settings in effect, as a configuration file, and exit",
     0},
    {"listen-fd", KEY_LISTEN_FD, "FD", 0, "Descriptor of a listening client socket, instead of --socket", 0},
    {"operator-fd", KEY_OPERATOR_FD, "FD", 0,
     "Descriptor of a listening operator socket, instead of --operator-socket", 0},
    {"ready-fd", KEY_READY_FD, "FD", 0, "Descriptor that gets a byte and is closed once the sockets listen",
     0},
    {"no-operator-socket", KEY_NO_OPERATOR, NULL, 0, "Start without an operator socket", 0},
    {"allow-core", KEY_ALLOW_CORE, NULL, 0,
     "If kvcobrad crashes, let the kernel write a core file: stacks and static data, without pages and keys",
     0},
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
    const char *file;
    struct command_line_mode mode;
    bool applies_settings; /* false: only find the file; true: the file was read, options override it */
    struct errmsg *e;
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
    int r;

    if (!s)
        return ARGP_ERR_UNKNOWN;
    if (!in->applies_settings)
        return 0;

    r = config_set(in->config, s->name, arg, in->e);
    if (r == -ENOMEM) /* no mistake of the user: the reload of a running daemon must not exit */
        return -r;
    if (r < 0)
        argp_error(state, "--%s", in->e->text);
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
        in->mode.check = arg;
        return 0;
    case KEY_PRINT:
        in->mode.prints = true;
        return 0;
    case KEY_USER:
        in->mode.is_user = true;
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
    case KEY_ALLOW_CORE:
        in->config->allows_core = true;
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

/* The option of which @arg is the name or, as getopt_long() permits, its beginning; NULL: none. */
static const struct argp_option *command_line_find(const char *arg)
{
    size_t n = strcspn(arg, "=");

    for (const struct argp_option *o = command_line_options(); o->name || o->doc; o++)
        if (o->name && strncmp(o->name, arg, n) == 0)
            return o;
    return NULL;
}

/* getopt_long() says that an option is unknown, not which one was meant. */
static void command_line_check_names(const struct command_line *l)
{
    static const char *const of_argp[] = {"help", "usage", "version"};

    for (int i = 1; i < l->argc; i++) {
        const char *arg = l->argv[i];
        const struct argp_option *o;
        struct nearest n;
        bool is_known = strncmp(arg, "--", 2) != 0 || arg[2] == '\0';

        for (size_t k = 0; k < sizeof(of_argp) / sizeof(of_argp[0]); k++)
            is_known = is_known || strncmp(of_argp[k], arg + 2, strlen(arg + 2)) == 0;
        if (is_known)
            continue;

        o = command_line_find(arg + 2);
        if (o) {
            i += o->arg && !strchr(arg, '='); /* its value may begin with "--" */
            continue;
        }

        nearest_init(&n, arg + 2);
        for (o = command_line_options(); o->name || o->doc; o++)
            if (o->name)
                nearest_try(&n, o->name);
        if (n.best) {
            fprintf(stderr, "kvcobrad: there is no option %s; did you mean --%s?\n", arg, n.best);
            exit(EXIT_USAGE);
        }
    }
}

static int command_line_apply(const struct command_line *l, struct command_line_input *in)
{
    const struct argp argp = {.options = command_line_options(),
                              .parser = command_line_parse,
                              .doc = doc,
                              .help_filter = command_line_help};
    int r;

    if (l->argc > 2 && strcmp(l->argv[1], "--complete") == 0) {
        completion_print(&argp, l->argc - 2, l->argv + 2, NULL);
        exit(EXIT_SUCCESS);
    }

    command_line_check_names(l);
    r = argp_parse(&argp, l->argc, l->argv, 0, NULL, in);

    return r == 0 ? 0 : fail(in->e, -r, "cannot read the command line: %s", strerror(r));
}

static int command_line_read_files(struct command_line_input *in)
{
    FILE *errors = in->mode.check ? stderr : NULL;
    _cleanup_(freep) char *own = NULL;
    int r = in->mode.is_user ? user_folders_apply(in->config, &own, in->e) : 0;
    const char *file = in->mode.check ? in->mode.check : in->file;

    if (r < 0)
        return r;
    if (file)
        r = config_load_all(in->config, file, true, errors, in->e);
    else if (own)
        r = config_load_all(in->config, own, false, errors, in->e);
    in->mode.printed_errors = r < 0 && r != -ENOMEM && errors;
    return r;
}

int command_line_load(const struct command_line *l, struct config *c, struct command_line_mode *ret_mode,
                      struct errmsg *e)
{
    struct command_line_input in = {.config = c, .e = e};
    int r;

    config_init(c);
    c->extent_bytes = 0;
    c->quota_bytes = 0;
    c->gpu_quota_bytes = 0;
    c->disk_quota_bytes = 0;

    argp_err_exit_status = EXIT_USAGE;
    r = command_line_apply(l, &in);
    if (r == 0)
        r = command_line_read_files(&in);
    *ret_mode = in.mode;
    if (r < 0)
        return r;

    in.applies_settings = true;
    r = command_line_apply(l, &in);
    if (r < 0)
        return r;

    config_fill_derived(c);
    r = config_check(c, e);
    return r < 0 ? r : config_resolve(c, e);
}
