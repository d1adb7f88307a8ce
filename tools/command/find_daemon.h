/*
 * Finds the other programs of this project, for the commands that start them (demo and the benches): in the
 * folder of this program, in a build tree, or where they are installed.
 */
#pragma once

#include <limits.h>

struct errmsg;

/* @given: the value of --daemon, or NULL. @ret_self: the path of this program. Return: 0; -ENOENT with a
 * sentence. */
int find_daemon(const char *given, char ret_self[PATH_MAX], char ret_daemon[PATH_MAX], struct errmsg *e);

/* The same for kvcobra-mover. @given: the value of --mover, or NULL; @self: from find_daemon(). */
int find_mover(const char *given, const char *self, char ret_mover[PATH_MAX], struct errmsg *e);

/* The same for kvcobra-cluster. */
int find_cluster(char ret[PATH_MAX], struct errmsg *e);

/* kvcobra, for kvcobra-lab. Return: 0; -ENOENT with a sentence. */
int find_kvcobra(char ret[PATH_MAX], struct errmsg *e);

/* The program @name, beside this one or in PATH. @built: where it is in a build tree, relative to the folder
 * of this program; or NULL. Return: 0; -ENOENT with a sentence. */
int find_command(const char *name, const char *built, char ret[PATH_MAX], struct errmsg *e);
