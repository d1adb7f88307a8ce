/* ACTIVATE and ROLLBACK: which table new sequences of a model use. */
#pragma once

#include <stdint.h>

#include "daemon/tables/table_entry.h"

struct errmsg;

/* A table to make the one that new sequences of its model use, and what came of it. */
struct table_activation {
    const uint8_t *digest;
    uint64_t revision; /* 0 = the next one; afterwards the model's, whatever the outcome */
    enum table_outcome outcome;
    uint8_t previous[DIGEST_BYTES]; /* the table that drains now; zeros: none */
};

/**
 * tables_activate() - make tables the ones that new sequences of their models use
 * @set: @n from 1 to WIRE_TABLES_MAX, of different models. They change together: after a restart all or none
 *       are active, and none changes if the outcome of one is STALE or CONFLICT.
 *
 * Return: 0, see the outcomes; -EINVAL: two of one model; -ENOENT: no such table; -EBADMSG: rejected or
 * retired; errno of the active-set file.
 */
int tables_activate(struct tables *ts, struct table_activation *set, size_t n, uint64_t now_ms,
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
