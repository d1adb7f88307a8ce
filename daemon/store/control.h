/*
 * The control page of a tenant, which its clients map: which tables new sequences of a model use, and which
 * extent is being reclaimed. proto/shared.h has the layout.
 */
#pragma once

#include <stdint.h>

struct errmsg;
struct tenant;

/* Creates a new page; the present one is marked as moved. Return: 0; errno of the memory. */
int control_build(struct tenant *t, struct errmsg *e);

/* The tables of one model. Digests are borrowed. */
struct control_tables {
    const uint8_t *active;
    const uint8_t *canary; /* NULL: none */
    unsigned canary_share; /* of 256 new sequences */
    const uint8_t *shadow; /* NULL: none */
    uint32_t shadow_ppm;   /* of new chunks */
    uint64_t revision;
};

/**
 * control_publish() - publish the tables of a model for new sequences and chunks
 * @ret_slot: the model's entry; may be NULL
 *
 * Adds the model if the page does not have it. When its list of digests is full, creates a new page with
 * the digests in use.
 *
 * Return: 0; -ENOSPC: CONTROL_MODELS_MAX models already; errno of the memory.
 */
int control_publish(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest,
                    const struct control_tables *tables, uint32_t *ret_slot, struct errmsg *e);

/* The extent that is being reclaimed, 0: none; see share.h. */
void control_set_reclaim(struct tenant *t, uint64_t extent);

/* Entry of the model, or -1. */
int control_find(const struct tenant *t, const uint8_t *model_digest);

/* Counts a retired table of the model. The page has the count for information only. */
void control_count_retired(struct tenant *t, const uint8_t *model_digest);
