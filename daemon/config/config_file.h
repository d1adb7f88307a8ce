/*
 * The configuration file, kvcobrad.conf(5), and the files of its folder FILE.d. Used by the command line
 * (command_line.h), which reads it at the start and after SIGHUP. config_print.c writes it.
 *
 * Looks up names of users and groups, which may take long.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct config;
struct errmsg;

enum { CONFIG_DROP_INS_MAX = 256 };

/**
 * config_load() - set the settings of one file
 * @path: see ini_file.h; each key once; then sections [tenant NAME], see tenant_rules.h
 * @errors: every error of the file is printed here, a line each; NULL: @e alone has the first one
 *
 * Return: 0; -EINVAL with a sentence that names file and line; errno of the file.
 */
int config_load(struct config *c, const char *path, FILE *errors, struct errmsg *e);

/**
 * config_load_all() - set the settings of @path, then those of the files in the folder "@path.d"
 * @must_exist: whether it is an error that @path does not exist
 *
 * The names of the folder's files end in ".conf" and do not begin with a dot. They are read in the order of
 * their names; a later file overrides an earlier one. A tenant has its section in one file.
 *
 * Return: as config_load(); -E2BIG: more than CONFIG_DROP_INS_MAX files.
 */
int config_load_all(struct config *c, const char *path, bool must_exist, FILE *errors, struct errmsg *e);

/*
 * The settings in effect, as a file that kvcobrad reads again: kvcobrad --print-config. Defaults that follow
 * from other settings, such as quota-bytes, are printed as the numbers that they became. @c: checked and
 * resolved.
 */
void config_print(const struct config *c, FILE *f);
