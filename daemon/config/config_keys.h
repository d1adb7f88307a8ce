/*
 * The configuration by name: sets a setting from text, reads the file of kvcobrad.conf(5), and compares two
 * configurations after SIGHUP. Used by the command line (command_line.h) and by the server's reload.
 *
 * Names, kinds and ranges come from the table of settings (settings.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct config;
struct errmsg;

/* Sets one setting. Return: 0; -ENOENT: no such setting; -EINVAL: @e names key and value; -ENOMEM. */
int config_set(struct config *c, const char *key, const char *value, struct errmsg *e);

/**
 * config_load() - set the settings of a file
 * @path: lines "key = value", "# comment"; no sections; each key once
 *
 * Return: 0; -EINVAL with a sentence that names file and line; errno of the file.
 */
int config_load(struct config *c, const char *path, struct errmsg *e);

/* Copies the settings that SIGHUP may change from @fresh. Logs them, and changes that need a restart. */
void config_reload(struct config *c, const struct config *fresh);

/* Frees the texts that config_set() copied. */
void config_deinit(struct config *c);
