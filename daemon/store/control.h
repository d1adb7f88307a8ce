/* The control page of a tenant: which table new sequences of a model use. proto/shared.h has the layout. */
#pragma once

#include <stdint.h>

struct errmsg;
struct tenant;

/* A fresh page; one that was there is marked moved. Return: 0; errno of the memory. */
int control_build(struct tenant *t, struct errmsg *e);

/* What a control page says of a model. Digests are borrowed. */
struct control_tables {
    const uint8_t *active;
    const uint8_t *canary; /* NULL: none */
    unsigned canary_share; /* of 256 new sequences */
    const uint8_t *shadow; /* NULL: none */
    uint32_t shadow_ppm;   /* of new chunks */
    uint64_t revision;
};

/**
 * control_publish() - say which tables are used for a model, from the next sequence and chunk on
 * @ret_slot: the model's entry; may be NULL
 *
 * A model that the page does not have yet is entered. When its list of digests is full, a new page is built
 * that has only those in use.
 *
 * Return: 0; -ENOSPC: CONTROL_MODELS_MAX models already; errno of the memory.
 */
int control_publish(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest,
                    const struct control_tables *tables, uint32_t *ret_slot, struct errmsg *e);

/* Extent that a lender asks back, 0: none; see share.h. */
void control_set_reclaim(struct tenant *t, uint64_t extent);

/* Entry of the model, or -1. */
int control_find(const struct tenant *t, const uint8_t *model_digest);

/* Informative: one more of the model's tables is retired. */
void control_count_retired(struct tenant *t, const uint8_t *model_digest);
