/*
 * The state folder: table files and the active set. For the files of this room; see
 * tables_files.c for the formats.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;
struct errmsg;
struct tables;

int tables_files_init(const struct config *c, struct errmsg *e); /* creates the folders */
int tables_files_write(const struct config *c, const uint8_t *digest, const void *bytes, size_t n_bytes,
                       struct errmsg *e);
void tables_files_remove(const struct config *c, const uint8_t *digest);
int tables_files_write_active(const struct tables *ts, struct errmsg *e);

/* Exactly 64 hexadecimal digits. @ret: [DIGEST_BYTES]. Return: 0; -EBADMSG. */
int tables_files_read_digest(const char *hex, uint8_t *ret);

/* Calls @on_table for every table file. */
void tables_files_load(const struct config *c, void (*on_table)(void *ctx, const char *path), void *ctx);

struct active_line { /* an active table, or a draining one that ROLLBACK may return to */
    const uint8_t *model_digest, *digest;
    uint64_t revision; /* that activated it last */
    bool draining;
    bool rolled_back;        /* draining: ROLLBACK left it */
    uint64_t drain_until_ms; /* draining: on the monotonic clock; 0: already over */
};
typedef void (*tables_active_fn)(void *ctx, const struct active_line *line);
void tables_files_load_active(const struct config *c, tables_active_fn on_line, void *ctx);
