/*
 * The command line of kvcobrad, on argp: an option for every setting of the table (settings.h), and options
 * that are not settings: --config, --check-config, --print-config, --user, --no-operator-socket, and those
 * that pass descriptors.
 *
 * Used by main.c, and by the program that writes the man pages. The file overrides the defaults, the command
 * line overrides the file. SIGHUP reads both again.
 */
#pragma once

#include <argp.h>
#include <stdbool.h>

struct config;
struct errmsg;

struct command_line {
    int argc;
    char **argv;
};

enum { EXIT_USAGE = 2 };

/* What kvcobrad does instead of serving, or where. */
struct command_line_mode {
    const char *check;   /* the file of --check-config, read instead of that of --config; NULL: not given */
    bool prints;         /* --print-config */
    bool is_user;        /* --user */
    bool printed_errors; /* --check-config printed the errors of the files */
};

/**
 * command_line_load() - read the configuration from the command line and its file
 * @c:         filled, also on failure: the caller calls config_deinit()
 * @ret_mode:  filled, also on failure
 *
 * Exits with EXIT_USAGE and a sentence if the command line is wrong, and after --help.
 * Return: 0; errno of config_load_all(), user_folders_apply() and config_check() with a sentence.
 */
int command_line_load(const struct command_line *l, struct config *c, struct command_line_mode *ret_mode,
                      struct errmsg *e);

/*
 * All options for argp, in the order of the table of settings. A row without name is a heading; an empty row
 * ends the list. Help sentences do not contain the defaults.
 */
const struct argp_option *command_line_options(void);

/* The setting of an option; NULL: the option is not a setting. */
const struct setting *command_line_setting(const struct argp_option *o);
