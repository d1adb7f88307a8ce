/*
 * The configuration files of kvcobrad and kvcobra-cluster: reads one file and hands over its settings one by
 * one. What names and values mean is the caller's business.
 *
 *     # comment           at the beginning of a line or behind a blank, up to its end; ';' begins one too
 *     [section]
 *     key = value         # comment
 *     key = first,
 *       second            a line that is indented deeper than that of its key goes on with the value
 *     key = "a # b"       quotation marks keep '#', ';' and blanks; "" inside them is one quotation mark
 *
 * Lines may be long; a file has at most INI_FILE_BYTES_MAX bytes, and is a regular file or /dev/null.
 */
#pragma once

#include <stdio.h>

struct errmsg;

#define INI_FILE_BYTES_MAX (1 << 20)

struct ini_handler {
    /*
     * Takes one setting. @section: "" before the first section. @key NULL: @section begins here. @value has
     * at least one byte, or is "" if the file says so in quotation marks.
     *
     * Return: 0; an error of the file with a sentence: the rest of the file is read, for its errors; -ENOMEM,
     * -EAGAIN: these end the reading.
     */
    int (*set)(void *ctx, const char *section, const char *key, const char *value, struct errmsg *e);
    void *ctx;
};

/**
 * ini_file_read() - give all settings of @path to @handler
 * @errors:  every error is printed here, a line each; NULL: @e alone has the first one
 * @command: the command that prints all errors, for the sentence; such as "kvcobrad --check-config"
 *
 * Return: 0; -EINVAL with a sentence that names file and line; errno of the file; an error of the handler.
 */
int ini_file_read(const char *path, const struct ini_handler *handler, FILE *errors, const char *command,
                  struct errmsg *e);
