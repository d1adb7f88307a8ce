/* ACTIVATE and ROLLBACK: which table new sequences of a model use. */
#pragma once

#include <stdint.h>

#include "daemon/tables/table_entry.h"

struct errmsg;

/**
 * tables_activate() - make a table the one that new sequences of its model use
 * @revision:     0 = the next one
 * @ret_revision: the model's revision afterwards, whatever the outcome
 * @ret_previous: [DIGEST_BYTES] the table that drains now; zeros: none
 *
 * Return: 0, see *ret_outcome; -ENOENT: no such table; -EBADMSG: rejected or retired; errno of the
 * active-set file.
 */
int tables_activate(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                    enum table_outcome *ret_outcome, uint64_t *ret_revision, uint8_t *ret_previous,
                    struct errmsg *e);

/**
 * tables_rollback() - leave @digest for the table that was active before it
 * @ret_active: [DIGEST_BYTES] the active table afterwards
 *
 * Return: 0, see *ret_outcome (OUTCOME_ALREADY: it is not active); -ENOENT: no such table; -ENODATA: no
 * earlier table drains; errno of the active-set file.
 */
int tables_rollback(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                    enum table_outcome *ret_outcome, uint64_t *ret_revision, uint8_t *ret_active,
                    struct errmsg *e);
