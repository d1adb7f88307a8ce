/*
 * The state folder: table files and the active set. For the files of this room; see
 * tables_files.c for the formats.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct config;
struct errmsg;
struct tables;

int tables_files_init(const struct config *c, struct errmsg *e); /* creates the folders */
int tables_files_write(const struct config *c, const uint8_t *digest, const void *bytes, size_t n_bytes,
                       struct errmsg *e);
void tables_files_remove(const struct config *c, const uint8_t *digest);
/* Prints the active set; @ts: struct tables. */
void tables_files_print_active_set(const void *ts, FILE *f);

/* Exactly 64 hexadecimal digits. @ret: [DIGEST_BYTES]. Return: 0; -EBADMSG. */
int tables_files_read_digest(const char *hex, uint8_t *ret);

/* Calls @on_table for every table file. Return: 0; the first error of the machine, also of @on_table. */
typedef int (*tables_file_fn)(void *ctx, const char *path, struct errmsg *e);
int tables_files_load(const struct config *c, tables_file_fn on_table, void *ctx, struct errmsg *e);

/*
 * Reads the text file @name of the state folder; both are the caller's to free. A file that is missing or
 * cannot be a text leaves them NULL: the latter is logged. Return: 0; an error of the machine.
 */
int tables_files_read_text(const struct config *c, const char *name, size_t bytes_max, char **ret_path,
                           char **ret_text, struct errmsg *e);

/* A text file of the state folder: its first line is @title, which ends with a newline. */
struct tables_text {
    const char *name, *title;
    const char *what; /* the file has, in words */
    size_t bytes_max;
};

/* One line, which may be changed. It logs what it ignores, with @path. Return: 0; an error that ends the
 * start. */
typedef int (*tables_line_fn)(void *ctx, const char *path, char *line, struct errmsg *e);

/* Calls @on_line for each line after the title. A file that is missing has none; one that cannot be read as
 * text, or has another title, is logged and has none. Return: 0; an error of the machine, or of @on_line. */
int tables_files_read_lines(const struct config *c, const struct tables_text *t, tables_line_fn on_line,
                            void *ctx, struct errmsg *e);

struct active_line { /* an active table, or a draining one that ROLLBACK may return to */
    const uint8_t *model_digest, *digest;
    uint64_t revision; /* that activated it last */
    bool draining;
    bool rolled_back;        /* draining: ROLLBACK left it */
    uint64_t drain_until_ms; /* draining: on the monotonic clock; 0: already over */
};
typedef int (*tables_active_fn)(void *ctx, const struct active_line *line, struct errmsg *e);
int tables_files_load_active(const struct config *c, tables_active_fn on_line, void *ctx, struct errmsg *e);
