/*
 * STAGE: makes an entry from the bytes of a table, in four steps. Parsing and writing take long and do not
 * touch struct tables, so a thread may do them. Deciding and accepting are done on the loop. One table is
 * staged at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/tables/table_entry.h"

struct staging {
    const void *bytes;
    size_t n_bytes;
    uint64_t revision;   /* 0, or the lowest revision of the model that the operator expects */
    struct table *table; /* the parsed table; tables_stage_deinit() releases it */
    int copy;            /* for clients; -1: none. tables_stage_deinit() closes it */
    int err;             /* of the last step */
    struct errmsg why;
    uint8_t digest[DIGEST_BYTES]; /* of bytes that are no table */
};

#define STAGING_WRITE 1 /* tables_stage_decide(): tables_stage_write() comes next */

void tables_stage_parse(struct staging *s);
void tables_stage_write(const struct config *c, struct staging *s);
void tables_stage_deinit(struct staging *s);

/**
 * tables_stage_decide() - decide about a parsed table
 * @ret_entry: also set on -EBADMSG: the REJECTED entry with the reason, or NULL if there is no room for one
 *
 * Return: 0: done; STAGING_WRITE; -EBADMSG; -ESTALE: @revision is older than the model's; -ENOMEM.
 */
int tables_stage_decide(struct tables *ts, struct staging *s, enum table_outcome *ret_outcome,
                        struct table_entry **ret_entry, struct errmsg *e);

/*
 * Adds the entry, after the file was written. Return: 0; -ENOSPC: too many tables, or the state folder is
 * full; errno of the file.
 */
int tables_stage_accept(struct tables *ts, struct staging *s, enum table_outcome *ret_outcome,
                        struct table_entry **ret_entry, struct errmsg *e);

/* Runs all steps. Return: see tables_stage_decide() and tables_stage_accept(). */
int tables_stage(struct tables *ts, const void *bytes, size_t n_bytes, uint64_t revision,
                 enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e);
