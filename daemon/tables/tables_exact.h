/*
 * Exact tables, made when a client asks for one and its model has no active table. They are never staged or
 * tried, and have revision 0: ACTIVATE of any table of the model replaces one as if nothing had been
 * active, and ROLLBACK does not return to it.
 *
 * The file DIR/exact has the tables that are active, in hexadecimal: a client must not wait for a disk, so
 * the file is written after the table is published. Pages of a table that a restart lost are dropped.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "alloc/table/table_exact.h"

struct errmsg;
struct table_entry;
struct table_model;
struct tables;

/* Most of them: half of the setting `tables` at most, so that operators find room. */
enum { EXACT_TABLES_MAX = 256 };

/* What a client says about its model. */
struct exact_request {
    const uint8_t *model_digest; /* no alias */
    const struct geometry *geometry;
    uint32_t n_positions; /* as for geometry_check_same() */
    uint32_t form;        /* exact_form_pack(); 0: the client uses tables with codes only */
};

/**
 * tables_exact_open() - the active table of a model: a table with codes, or an exact one that fits the client
 * @ret: the model, with an active table. Its geometry is compared with the client's if the table is exact
 *
 * An exact table of another form or geometry that no session uses is replaced.
 *
 * Return: 0; -ENODATA: there is no table for this client; -EINVAL: an unknown form; -EDQUOT: too many exact
 * tables are in use; -ENOMEM.
 */
int tables_exact_open(struct tables *ts, const struct exact_request *q, uint64_t now_ms,
                      struct table_model **ret, struct errmsg *e);

/* The model has no active table from now on: its exact one drains, without a drain time. */
void tables_exact_withdraw(struct tables *ts, struct table_model *m, uint64_t now_ms);

/* The model's exact table is not active now: the file is written again. */
void tables_exact_replaced(struct tables *ts);

/* At the start, after the active set. Lines that cannot be read are logged. Return: 0; -ENOMEM ... */
int tables_exact_load(struct tables *ts, struct errmsg *e);

/* For state_writer_set_printer(). */
void tables_exact_print_all(const void *ctx, FILE *f);
