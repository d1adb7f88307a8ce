/*
 * A table for kvcobra up --model: the model is found, a quick table is made of it by the commands that a
 * person would run, and staged and activated. They run as children, and their output is shown.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>

#include "client/kvcobra-call.h"

struct common_options;
struct errmsg;

struct own_table {
    const char *name;    /* as given; borrowed */
    char path[PATH_MAX]; /* of the file or folder */
    bool is_folder;
};

/*  own_table_find_model() - the GGUF file, the folder, or the folder in the cache of Hugging Face that
 * @name means Return: 0; -ENOENT: nothing of that name; -ENOPKG: a folder, and the Python package is not
 * beside this program; with a sentence.
 */
int own_table_find_model(struct own_table *t, const char *name, struct errmsg *e);

/* Makes a table unless the daemon has an active one. @operators: the socket of @c. Return: an exit code. */
int own_table_make(const struct own_table *t, kvc_client *c, const char *operators,
                   const struct common_options *o);
