/* Where the programs are that commands start for themselves: beside this one, in a build tree, or where they
 * are installed. */
#pragma once

#include <limits.h>

struct errmsg;

/* @given: --daemon, or NULL. @ret_self: this program. Both [PATH_MAX]. Return: 0; -ENOENT with a sentence. */
int find_daemon(const char *given, char ret_self[PATH_MAX], char ret_daemon[PATH_MAX], struct errmsg *e);

/* kvcobra-mover, as find_daemon(), for a daemon that is started here. @self: as that said. */
int find_mover(const char *given, const char *self, char ret_mover[PATH_MAX], struct errmsg *e);
