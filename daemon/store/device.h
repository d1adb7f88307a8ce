/*
 * Devices hold pages. Device 0 is the host's memory and always exists; the others are the GPUs of the
 * configuration. Each device has its own store: pool, tenants, accounts. A session is bound to one device, so
 * a tenant is one account on one device.
 *
 * A device's number and name follow the configuration. Data that is stored over restarts has the device's
 * place in the journal instead (struct journal_place), which stays with the UUID.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/config/gpu_uuid.h"
#include "daemon/config/tenant_rules.h"
#include "daemon/store/account.h"
#include "daemon/store/advice.h"
#include "daemon/store/journal.h"
#include "daemon/store/store.h"

struct chunk_key;
struct config;
struct gpu_pool;
struct gpus;

#define DEVICES_MAX JOURNAL_PLACES_MAX
#define DEVICE_NAME_BYTES 16
_Static_assert(DEVICES_MAX == WIRE_DEVICES_MAX, "STATUS lists all devices");

/* The values of the protocol's DeviceState. */
enum device_state {
    DEVICE_READY = 1,
    DEVICE_OPENING = 2,
    DEVICE_UNAVAILABLE = 3,
};

struct device {
    uint32_t number;
    char name[DEVICE_NAME_BYTES]; /* "cpu", "gpu0" */
    char uuid[GPU_UUID_BYTES];    /* "": the host's memory, or a GPU whose UUID is not known yet */
    uint64_t pool_bytes, extent_bytes, unit_bytes; /* as configured; a persisted pool may be larger */
    struct store store;
    struct gpu_pool *gpu;     /* NULL: the host's memory */
    uint64_t guarantee_bytes; /* of tenants without a guarantee of their own */
    struct advice *advice;    /* of all tenants; NULL: no chunk was looked up yet */
    uint8_t advice_hash_key[ADVICE_HASH_KEY_BYTES];

    enum device_state state;     /* of a GPU: gpu_open.h */
    struct gpus *gpus;           /* of a GPU */
    struct errmsg why;           /* UNAVAILABLE */
    bool is_passing;             /* UNAVAILABLE only because the mover ended: clients get EAGAIN */
    uint64_t pause_ms, retry_ms; /* UNAVAILABLE: not opened again before retry_ms */
    char product[WIRE_PRODUCT_BYTES_MAX + 1];
    bool lists_processes; /* the driver lists the processes that use it */
    bool is_shared;       /* processes use it through an MPS server */
};

struct devices {
    const struct config *config;
    const uint8_t *secret; /* [32], the key ring's: index keys are derived from it */
    uint8_t boot_id[BOOT_ID_BYTES];
    struct device list[DEVICES_MAX]; /* [n], at fixed addresses */
    uint32_t n;
    uint64_t n_tenants; /* of all devices, since the start */
    uint32_t n_series;  /* tenants that have_series */
    uint32_t n_advised; /* tenants that have_advice */
    bool is_restoring;  /* tenants of stored pages exist whatever the maximum is, and none is forgotten */
    uint64_t forgotten_evictions;            /* of all tenants that were forgotten */
    struct tenant_counters forgotten_others; /* of those without a series of their own */
    struct accounts accounts;
    struct pool_serials serials;
};

/* Sets names and limits; persist_open() creates the pools. @d: zeros. @c: borrowed, checked. */
void devices_init(struct devices *d, const struct config *c);
void devices_deinit(struct devices *d); /* tenants are gone */

/* Sets guarantees and lending from the configuration, at the start and after a reload. */
void devices_configure(struct devices *d, const struct config *c);

/* NULL: no such device, or its UUID is not known yet: devices_unknown(). @uuid "": the host's memory. */
struct device *devices_find_uuid(struct devices *d, const char *uuid);

/* The GPU whose UUID is not known before it is opened, or NULL. */
struct device *devices_unknown(struct devices *d);
struct device *devices_find_name(struct devices *d, const char *name);
struct device *devices_find_place(struct devices *d, uint32_t place);

/*
 * The account of a process: that of its section in the configuration, else that of its user, with a reference
 * for the caller. Return: see accounts_get_named().
 */
int devices_account(struct devices *d, const struct tenant_peer *peer, struct account **ret,
                    struct errmsg *e);

/*
 * Quota and guarantee that the configuration @c gives to an account on @x: those of its section, else those
 * of all tenants. The guarantee of all tenants does not change while kvcobrad runs.
 */
struct tenant_limit devices_limit(const struct device *x, const struct config *c, const char *account);

/*
 * The tenant of account @a on @x, created if it is new. If there are too many, one that is idle is forgotten.
 * devices->secret is set.
 *
 * Return: 0; -EDQUOT: too many tenants; errno of the memory.
 */
int devices_tenant(struct devices *d, struct device *x, struct account *a, struct tenant **ret,
                   struct errmsg *e);

/**
 * devices_forget_idle() - free tenants that have nothing
 *
 * A tenant is idle while it has no session, no page, no arena, and neither a quota nor a guarantee of its
 * own. It is forgotten after @idle_ms, or when another one needs its place, with its index, control page,
 * ghosts and counters. Its extents are destroyed one per call, since that takes milliseconds.
 *
 * Return: whether idle tenants are left.
 */
bool devices_forget_idle(struct devices *d, uint64_t now_ms, uint64_t idle_ms);

struct tenant *devices_find_tenant(const struct devices *d, const char *name); /* or NULL */

/* Iterates over the tenants of all devices: NULL starts and ends. */
struct tenant *devices_next_tenant(const struct devices *d, const struct tenant *t);

/* Checks the accounts of every device. For tests. */
bool devices_are_valid(const struct devices *d, struct errmsg *e);

/* A chunk was looked up: counts it for the tenant, if it has_advice, and for its device. */
void device_note_lookup(struct tenant *t, const struct space *space, unsigned page_class,
                        const struct chunk_key *key, bool found, uint64_t now_ms);

static inline bool device_is_gpu(const struct device *d)
{
    return d->number > 0;
}

/* The guarantee that a section itself gives on @d: a tenant with one exists before a process connects. */
static inline uint64_t device_section_guarantee(const struct device *d, const struct tenant_section *s)
{
    return device_is_gpu(d) ? s->gpu.guarantee_bytes : s->host.guarantee_bytes;
}

/* The store with the tenant's pages. */
static inline struct store *store_of(const struct tenant *t)
{
    return &t->device->store;
}

/* The bytes of pages that a tenant may have: its quota, or the pool if that is smaller. */
static inline uint64_t device_tenant_capacity(const struct tenant *t)
{
    uint64_t pool_bytes = store_of(t)->pool.pool_bytes;

    return t->quota_bytes < pool_bytes ? t->quota_bytes : pool_bytes;
}
