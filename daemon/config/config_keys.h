/*
 * The names of the configuration: one table that the command line, the file and a reload share. An option
 * --NAME of the command line is the key NAME of the file; the man page kvcobrad.conf(5) has them all.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct config;
struct errmsg;

/* Return: 0; -ENOENT: no such key; -EINVAL; with a sentence that names key and value; -ENOMEM. */
int config_set(struct config *c, const char *key, const char *value, struct errmsg *e);

/**
 * config_load() - set what a file says
 * @path: lines "key = value", "# comment"; no sections; each key once
 *
 * Return: 0; -EINVAL with a sentence that names file and line; errno of the file.
 */
int config_load(struct config *c, const char *path, struct errmsg *e);

/* Copies what may change while the daemon runs. Logs each change, and what differs but needs a restart. */
void config_reload(struct config *c, const struct config *fresh);

/* Frees the texts that config_set() keeps. */
void config_deinit(struct config *c);
