/*
 * SIGHUP: a thread reads the configuration again, since the file and the look-ups of users and groups may
 * block; the loop applies the result. A configuration with an error changes nothing. A look-up that never
 * returns delays the reload only.
 */
#pragma once

struct config;
struct errmsg;
struct keyring;
struct reload;
struct server;

/*
 * Fills @fresh, which is not initialised, from the configuration as it is now; the caller frees it also on
 * failure. Called by a thread. Return: 0; errno with a sentence.
 */
typedef int (*reload_read_fn)(struct config *fresh, struct errmsg *e);

/*
 * Called on the loop with a configuration that config_check() accepted; takes what it needs from @fresh.
 * @ring: of setting key-file, as it is now; NULL: there is no such file. Return: 0; errno with a sentence:
 * nothing has changed.
 */
typedef int reload_apply_fn(struct server *s, struct config *fresh, struct keyring *ring, struct errmsg *e);

int reload_new(struct server *s, reload_read_fn read, reload_apply_fn *apply, struct reload **ret,
               struct errmsg *e);

/* Reads the configuration; once more after a read in progress, which may have seen the earlier file. */
void reload_begin(struct reload *r);

/* A thread that still reads is left behind, with the memory that it uses. */
struct reload *reload_free(struct reload *r);
