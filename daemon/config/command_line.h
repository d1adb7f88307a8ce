/*
 * The command line of kvcobrad, on argp: an option for every setting of the table (settings.h), and those
 * below that are no settings: --config, --check-config, descriptors, --no-operator-socket.
 *
 * Used by main.c, and by the program that writes the man pages. Defaults are overridden by the file, the file
 * by the command line; SIGHUP reads both again.
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
 * command_line_load() - the configuration that the command line and its file ask for
 * @c:          filled, also on failure: the caller calls config_deinit()
 * @ret_check:  the file of --check-config, which was read instead of other settings; NULL: there is none
 *
 * Exits with EXIT_USAGE and a sentence if the command line is wrong, and after --help.
 * Return: 0; errno of config_load() and config_check() with a sentence.
 */
int command_line_load(const struct command_line *l, struct config *c, const char **ret_check,
                      struct errmsg *e);

/* All options in the order of the table of settings, as argp takes them; a row without name is a heading.
 * Ends with an empty row. Help sentences are without defaults. */
const struct argp_option *command_line_options(void);

/* The setting of an option; NULL: it is none. */
const struct setting *command_line_setting(const struct argp_option *o);
