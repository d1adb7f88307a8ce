/*
 * Allocation tables and which of them is active for each model. DESIGN 5.4, this part of it:
 *
 *     STAGE --parse--> VERIFIED --ACTIVATE--> ACTIVE --ACTIVATE of another--> DRAINING --no reference, no
 * hold--> RETIRED
 *         \--bad--> REJECTED        ^--------------- ACTIVATE, ROLLBACK --------/
 *
 * A VERIFIED table can be tried beside the active one (trial.h): as SHADOW, or as a canary for some new
 * sequences.
 *
 * The table that ROLLBACK would return to stays DRAINING until its drain time is over, referenced or not.
 * RETIRE ends the drain time at once. A restart forgets who had references: a table that drained before it
 * takes new ones until its drain time is over, and waits --lease-ms for the first of them.
 *
 * With a state folder everything but references survives a restart: DIR/tables/DIGEST.kvct are the files,
 * DIR/active names the active one of each model. ACTIVATE writes that file before it publishes the word.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/tables/table_entry.h"

struct config;
struct devices;
struct space;

/* Loads the state folder, if one is configured. What cannot be read there is logged and left alone. */
int tables_init(struct tables *ts, const struct config *config, struct devices *devices, struct errmsg *e);
void tables_deinit(struct tables *ts); /* after every page is gone from the store */

/**
 * tables_retire() - a table that is not active goes as soon as nobody references or holds its pages
 * @revision: 0, or what the operator believes the model's revision to be at least
 *
 * Return: 0, see *ret_outcome and the entry's state; -ENOENT; -EBUSY: it is active.
 */
int tables_retire(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                  enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e);

/* The space of (table, shard), made if it is new. Return: 0; -EINVAL: shard outside the heads; -ENOMEM. */
int tables_space(struct tables *ts, struct table_entry *t, struct shard shard, struct space **ret_space,
                 struct errmsg *e);

/**
 * tables_adopt_space() - the space of pages that an earlier process left
 * @slot_bytes, @page_bytes: [2] by class, as recorded
 *
 * A table that is not here any more gets an entry that says so: its pages are of no use, but who holds them
 * goes on holding them. Return: 0; -EBADMSG: the table makes pages of other sizes; -ENOMEM; -ENOSPC: too many
 * tables.
 */
int tables_adopt_space(struct tables *ts, const uint8_t *digest, struct shard shard, unsigned page_class,
                       size_t slot_bytes, size_t page_bytes, struct space **ret_space, struct errmsg *e);

/* After the last tables_adopt_space(): tables with pages that are not active drain. */
void tables_adopt_done(struct tables *ts, uint64_t now_ms);

/* Whether a session that has no reference on the table may get one. */
bool tables_may_ref(const struct tables *ts, const struct table_entry *t, uint64_t now_ms);

/* DRAINING tables that nobody references or holds pages of become RETIRED; their pages and files go. */
void tables_retire_idle(struct tables *ts, uint64_t now_ms);

/* Borrowed descriptor of the table's bytes: memfd, sealed, read-only. */
int table_entry_fd(struct table_entry *t, int *ret_fd, struct errmsg *e);
