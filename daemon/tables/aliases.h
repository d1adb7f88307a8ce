/*
 * Aliases of models. Quantised weights have another digest than the original ones, and each file format has
 * a rule of its own, so an operator declares which digests are one model (ALIAS_MODEL). OPEN_MODEL with an
 * alias opens the model: its tables, its pages, its chunk keys. Clients that have a model open are not
 * affected.
 *
 * A model is not an alias, so there are no chains, and an alias has no tables: no client could use them.
 *
 * With a state folder the aliases survive a restart:
 *
 *     DIR/aliases   "kvcobra model aliases 1", then one line per alias: <alias> <model>, 64 hex digits each
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "daemon/tables/table_entry.h"

struct errmsg;

/**
 * aliases_add() - declare that @alias is the same model as @model
 *
 * Return: 0, *ret_outcome is APPLIED or ALREADY; -EINVAL: the digests are equal, or @model is an alias;
 * -EBUSY: @alias has tables or aliases; -EEXIST: it is an alias of another model; -ENOSPC: WIRE_ALIASES_MAX;
 * errno of the file: nothing has changed.
 */
int aliases_add(struct tables *ts, const uint8_t *alias, const uint8_t *model,
                enum table_outcome *ret_outcome, struct errmsg *e);

/* @ret_model: [DIGEST_BYTES] that it was an alias of. Return: 0; -ENOENT: not an alias; errno of the file. */
int aliases_remove(struct tables *ts, const uint8_t *alias, uint8_t *ret_model, struct errmsg *e);

/* The model of which @digest is an alias, borrowed from @ts; @digest itself if it is none. */
const uint8_t *aliases_resolve(const struct tables *ts, const uint8_t *digest);

void aliases_print_all(const void *ts, FILE *f); /* the file of aliases; @ts: struct tables */

/* At the start, after the tables were loaded. Lines that break a rule above are logged and ignored. */
int aliases_load(struct tables *ts, struct errmsg *e); /* 0; an error of the machine */
