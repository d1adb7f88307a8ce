/* Where the daemon is that commands start for themselves: beside this program, in a build tree, or in PATH. */
#pragma once

#include <limits.h>

struct errmsg;

/* @given: --daemon, or NULL. @ret_self: this program. Both [PATH_MAX]. Return: 0; -ENOENT with a sentence. */
int find_daemon(const char *given, char ret_self[PATH_MAX], char ret_daemon[PATH_MAX], struct errmsg *e);
