/*
 * Allocation tables, and which of them is active for each model (DESIGN 5.4):
 *
 *     STAGE --parse--> VERIFIED --ACTIVATE--> ACTIVE --ACTIVATE of another--> DRAINING --idle--> RETIRED
 *         \--bad--> REJECTED        ^--------------- ACTIVATE, ROLLBACK --------/
 *
 * Idle: no session references the table, and no page of it is held.
 *
 * A VERIFIED table can be tried beside the active one (trial.h): as SHADOW, or as a canary for some new
 * sequences.
 *
 * The table that ROLLBACK would return to stays DRAINING until its drain time is over, referenced or not, and
 * so does a table that ROLLBACK left: ACTIVATE goes forward to it again without its file.
 * RETIRE ends the drain time at once. A restart loses the references: a table that drained before it
 * accepts new ones until its drain time is over, and does not retire within --lease-ms of the start.
 *
 * With a state folder everything but references survives a restart: DIR/tables/DIGEST.kvct are the files,
 * DIR/active names the active table of each model, DIR/aliases the aliases. ACTIVATE writes the active set
 * before it publishes the word.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/tables/table_entry.h"

struct config;
struct devices;
struct space;

/*
 * Loads the state folder, if one is configured. Entries that cannot be read are logged and left alone.
 * @e: not NULL.
 */
int tables_init(struct tables *ts, const struct config *config, struct devices *devices, struct errmsg *e);
void tables_deinit(struct tables *ts); /* when the stores have no page */

/**
 * tables_retire() - retire a table that is not active as soon as no session references it and no page of it
 * is held. An exact table may be active: then its model has none
 * @revision: 0, or the lowest revision of the model that the operator expects
 *
 * Return: 0, see *ret_outcome and the entry's state; -ENOENT; -EBUSY: it is active, and not exact.
 */
int tables_retire(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                  enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e);

/* The space of (table, shard), created if it is new. Return: 0; -EINVAL: shard outside the heads; -ENOMEM. */
int tables_space(struct tables *ts, struct table_entry *t, struct shard shard, struct space **ret_space,
                 struct errmsg *e);

/**
 * tables_adopt_space() - the space of pages that an earlier process stored
 * @slot_bytes, @page_bytes: of the class, as recorded
 *
 * A table that is missing gets an entry without a table: its pages cannot be read, but clients that hold
 * them keep them. Return: 0; -EBADMSG: the table has pages of other sizes; -ENOMEM; -ENOSPC: too many
 * tables.
 */
int tables_adopt_space(struct tables *ts, const uint8_t *digest, struct shard shard, unsigned page_class,
                       size_t slot_bytes, size_t page_bytes, struct space **ret_space, struct errmsg *e);

/* After the last tables_adopt_space(): tables with pages that are not active drain. */
void tables_adopt_done(struct tables *ts, uint64_t now_ms);

/* Whether a session without a reference on the table may get one. */
bool tables_may_ref(const struct tables *ts, const struct table_entry *t, uint64_t now_ms);

/*
 * Retires the DRAINING tables that no session references and of which no page is held; drops their pages
 * and removes their files.
 */
void tables_retire_idle(struct tables *ts, uint64_t now_ms);
