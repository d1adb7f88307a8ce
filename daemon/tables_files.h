/* The state folder: table files and the active set. Used by tables.c only; see tables.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct config;
struct errmsg;
struct tables;

int tables_files_init(const struct config *c, struct errmsg *e); /* makes the folders */
int tables_files_write(const struct config *c, const uint8_t *digest, const void *bytes, size_t n_bytes,
                       struct errmsg *e);
void tables_files_remove(const struct config *c, const uint8_t *digest);
int tables_files_write_active(const struct tables *ts, struct errmsg *e);

/* Calls @on_table for every table file, @on_active for every line of the active set. */
void tables_files_load(const struct config *c, void (*on_table)(void *ctx, const char *path), void *ctx);
typedef void (*tables_active_fn)(void *ctx, const uint8_t *model_digest, uint64_t revision, const uint8_t *digest);
void tables_files_load_active(const struct config *c, tables_active_fn on_active, void *ctx);
