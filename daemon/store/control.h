/*
 * The control page of a tenant, which its clients map: which tables new sequences of a model use, which
 * extent is being reclaimed, and the number of the filter over slower tiers. proto/shared.h has the layout.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct tenant;

/*
 * Creates a new page; the present one is marked as moved. The one before it is given back: clients that keep
 * it read zeros, which are no control page. Return: 0; errno of the memory.
 */
int control_build(struct tenant *t, struct errmsg *e);
void control_free(struct tenant *t);

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
 * Adds the model if the page does not have it. When the list of models, or the model's list of digests, is
 * full, creates a new page with the models and digests in use. Clients of the old page ask for the new one.
 *
 * Return: 0; -ENOSPC: CONTROL_MODELS_MAX models have users; errno of the memory.
 */
int control_publish(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest,
                    const struct control_tables *tables, uint32_t *ret_slot, struct errmsg *e);

/* New sequences of the model have no table. A page without the model stays as it is. */
void control_withdraw(struct tenant *t, const uint8_t *model_digest);

/* A user of the model in entry @slot, which control_publish() returned: the entry stays until it ends. */
void control_model_ref(struct tenant *t, uint32_t slot);
void control_model_unref(struct tenant *t, const uint8_t *model_digest);

/* The extent that is being reclaimed, 0: none; see share.h. */
void control_set_reclaim(struct tenant *t, uint64_t extent);

/* The number of the tenant's filter over slower tiers, 0: none. */
void control_set_filter(struct tenant *t, uint64_t object);

/* Whether a tier without a filter may have any chunk of the tenant. */
void control_set_asks(struct tenant *t, bool asks);

/* Entry of the model, or -1. */
int control_find(const struct tenant *t, const uint8_t *model_digest);

/* Counts a retired table of the model. The page has the count for information only. */
void control_count_retired(struct tenant *t, const uint8_t *model_digest);
