/*
 * The configuration by name: sets a setting from text, and compares two configurations after SIGHUP. Used by
 * the command line (command_line.h), the file (config_file.h) and the server's reload.
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

/*
 * Copies the settings that SIGHUP may change from @fresh, and exchanges the sections. Logs changed settings,
 * and those that need a restart.
 */
void config_reload(struct config *c, struct config *fresh);

/* Frees the texts that config_set() copied, and the sections. */
void config_deinit(struct config *c);
