/*
 * Trials: a table is tried beside the active one of its model, before it is activated.
 *
 *     SHADOW   clients encode a share of new chunks with it too and report both errors (fit.h);
 *              its codes are not stored
 *     canary   a share of new sequences, or all of some tenants, use it; its state stays VERIFIED or SHADOW
 *
 * One of each per model. Both carry the model's revision, like ACTIVATE, and both survive a restart
 * (DIR/trials, written before the active set, which has the revision). ACTIVATE and RETIRE of the
 * table end its trials.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/tables/table_entry.h"

struct errmsg;
struct tenant;

/**
 * trial_shadow() - try a table on a share of new chunks, or end this trial
 * @ppm: of new chunks, at most 1000000; 0: end
 *
 * A table that was in shadow of the same model is VERIFIED again.
 *
 * Return: 0, see *ret_outcome; -ENOENT; -ENODATA: no table of its model is active; -EBUSY: it is active,
 * draining or has no bytes; -EINVAL: the share; -ERANGE: the revision; errno of the file.
 */
int trial_shadow(struct tables *ts, const uint8_t *digest, uint32_t ppm, uint64_t revision,
                 enum table_outcome *ret_outcome, uint64_t *ret_revision, struct errmsg *e);

/**
 * trial_canary() - use a table for a share of new sequences and for all of some tenants, or end this trial
 * @share:   of 256, at most 255; 0 without a tenant: end
 * @tenants: [n_tenants], at most TRIAL_TENANTS_MAX
 *
 * A canary that ends while it has pages or references drains.
 *
 * Return: as trial_shadow(); -EINVAL: also a bad name of a tenant.
 */
int trial_canary(struct tables *ts, const uint8_t *digest, uint32_t share, const char *const *tenants,
                 size_t n_tenants, uint64_t revision, uint64_t now_ms, enum table_outcome *ret_outcome,
                 uint64_t *ret_revision, struct errmsg *e);

/* Ends the trials of a table; the caller sets its state. */
void trial_end_all(struct tables *ts, const struct table_entry *t);

/*
 * Publishes the model's tables to one tenant's clients. @ret_slot: may be
 * NULL. Return: see control_publish().
 */
int trial_publish_to(struct tenant *tenant, const struct table_model *m, uint32_t *ret_slot,
                     struct errmsg *e);

/*
 * Publishes the model's tables to all its tenants. A control page that cannot be rebuilt keeps its old words.
 */
void trial_publish(struct tables *ts, const struct table_model *m);

void trial_print_all(const void *ts, FILE *f); /* the file of trials; @ts: struct tables */

/*
 * At the start, after the active set was loaded. Lines about tables that are not VERIFIED
 * are logged and ignored.
 */
int trial_load(struct tables *ts, struct errmsg *e); /* 0; an error of the machine */
