/* What tables.c and tables_activate.c share; everybody else uses tables.h. */
#pragma once

#include "daemon/tables/tables.h"

#define REVISION_MAX ((UINT64_C(1) << 40) - 1) /* what a control word holds */

/* Logs the change and keeps the count of draining tables. */
void table_set_state(struct tables *ts, struct table_entry *t, enum table_state state);

int table_model_new(struct tables *ts, const uint8_t *digest, struct table_model **ret, struct errmsg *e);
void table_model_drop(struct tables *ts, struct table_model *m);

/* The table that ROLLBACK from @m's active one returns to, or NULL. */
struct table_entry *table_model_previous(const struct tables *ts, const struct table_model *m);

/* An entry in state STAGED. Return: 0; -ENOSPC: too many tables; -ENOMEM. */
int table_entry_new(struct tables *ts, const uint8_t *digest, struct table_entry **ret, struct errmsg *e);

/* A table that was parsed: its entry, VERIFIED. Takes a reference of its own. Return: 0; see
 * table_entry_new(). */
int table_accept(struct tables *ts, struct table *table, struct table_entry **ret, struct errmsg *e);

/* Every tenant that uses the model sees which tables are used now; a page that cannot be rebuilt keeps its
 * old words. */
void table_model_publish(struct tables *ts, const struct table_model *m);
