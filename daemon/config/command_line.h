/*
 * The command line of kvcobrad, on argp: an option for every setting of the table (settings.h), and options
 * that are not settings: --config, --check-config, --no-operator-socket, and those that pass descriptors.
 *
 * Used by main.c, and by the program that writes the man pages. The file overrides the defaults, the command
 * line overrides the file. SIGHUP reads both again.
 */
#pragma once

#include <argp.h>

struct config;
struct errmsg;

struct command_line {
    int argc;
    char **argv;
};

enum { EXIT_USAGE = 2 };

/**
 * command_line_load() - read the configuration from the command line and its file
 * @c:          filled, also on failure: the caller calls config_deinit()
 * @ret_check:  the file of --check-config, from which alone @c was read; NULL: the option was not given
 *
 * Exits with EXIT_USAGE and a sentence if the command line is wrong, and after --help.
 * Return: 0; errno of config_load() and config_check() with a sentence.
 */
int command_line_load(const struct command_line *l, struct config *c, const char **ret_check,
                      struct errmsg *e);

/*
 * All options for argp, in the order of the table of settings. A row without name is a heading; an empty row
 * ends the list. Help sentences do not contain the defaults.
 */
const struct argp_option *command_line_options(void);

/* The setting of an option; NULL: the option is not a setting. */
const struct setting *command_line_setting(const struct argp_option *o);
