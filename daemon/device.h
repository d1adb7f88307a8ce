/*
 * Where pages lie: the host's memory, which is device 0 and always there, and the GPUs of the configuration. Each has a store
 * of its own: pool, tenants, accounts. A session is bound to one of them, so a tenant is one uid on one device.
 *
 * A device's number and name follow the configuration; what is kept over restarts names its place in the journal instead
 * (struct journal_place), which stays with the UUID.
 */
#pragma once

#include <stdint.h>

#include "daemon/journal.h"
#include "daemon/store.h"

struct config;
struct errmsg;

#define DEVICES_MAX JOURNAL_PLACES_MAX
#define DEVICE_NAME_BYTES 16

struct device {
    uint32_t number;
    uint32_t place;                /* in the journal; PLACE_NONE: not known yet */
    char name[DEVICE_NAME_BYTES];  /* "cpu" */
    char uuid[JOURNAL_UUID_BYTES]; /* "": the host's memory */
    uint64_t pool_bytes, extent_bytes, unit_bytes; /* as configured: a kept pool may be larger */
    struct store store;
    uint64_t quota_bytes, guarantee_bytes; /* of tenants for whom no operator said otherwise */
};

struct devices {
    struct device list[DEVICES_MAX]; /* [n], stay where they are */
    uint32_t n;
    uint32_t n_tenants;              /* of all devices, ever */
    struct pool_serials serials;
};

/* Names and limits, no pools yet: pool_init() makes them. @d: zeros. */
void devices_init(struct devices *d, const struct config *c);
void devices_deinit(struct devices *d); /* tenants are gone */

/* What the configuration says of tenants and lending, at the start and when it was read again. */
void devices_configure(struct devices *d, const struct config *c);

/* NULL: there is none. @uuid "": the host's memory. */
struct device *devices_find(struct devices *d, const char *uuid);
struct device *devices_find_name(struct devices *d, const char *name);
struct device *devices_find_place(struct devices *d, uint32_t place);

/* All tenants of all devices, one after the other: NULL begins and ends. */
struct tenant *devices_next_tenant(const struct devices *d, const struct tenant *t);

/* Everything adds up on every device. For tests. */
bool devices_are_valid(const struct devices *d, struct errmsg *e);

/* Where the tenant's pages are. */
static inline struct store *store_of(const struct tenant *t)
{
    return &t->device->store;
}
