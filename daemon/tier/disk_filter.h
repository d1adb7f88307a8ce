/*
 * The Bloom filters that clients see: one per tenant with sessions (proto/bloom.h). The loop says which
 * tenants want one, the thread of the tier makes and writes them, and the loop passes their descriptors to
 * clients and asks them. A filter is a memory object with a descriptor. A disk may have pages of many tenants
 * without a session here, or its files may claim so: none of them gets a filter.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/disk_format.h"
#include "proto/bloom.h"

struct errmsg;
struct extent;

struct disk_filter {
    struct disk_filter *next;
    char tenant[TIER_TENANT_BYTES];
    uint64_t wanted_ms;    /* when a session of the tenant was seen last */
    bool is_known;         /* the thread has looked for pages of the tenant */
    struct extent *memory; /* NULL: there are none, or it is not known */
    uint64_t object;       /* raised with every new object */
    struct bloom_writer writer;
    uint64_t n_removed; /* keys that were removed from the tier since the object was made */
};

struct disk_filters {
    pthread_mutex_t lock;
    struct disk_filter *list; /* of the tenants that want one */
    uint32_t n, n_max;
    uint32_t n_unknown;
    uint64_t last_object;
    bool is_open; /* the tier is ready, or about to be */
    void *names;  /* of tenants with pages, for tsearch(3): others need no look */
};

void disk_filters_init(struct disk_filters *f, uint32_t n_max);
void disk_filters_deinit(struct disk_filters *f);

/* ---- the thread of the tier ---- */

/* The tier opened, or goes off: no filter is known. */
void disk_filters_begin(struct disk_filters *f);
void disk_filters_end(struct disk_filters *f);

/* The tenant has pages on the tier; disk_filters_drop() ends that. */
void disk_filters_note_tenant(struct disk_filters *f, const char *tenant);

/* A tenant whose pages are to be looked for. False: there is none. */
bool disk_filters_next(struct disk_filters *f, char ret_tenant[static TIER_TENANT_BYTES]);

/*
 * A filter with room for @n_keys. disk_filters_put() shows it to clients; while its keys are added, the
 * tenant's present one answers. Return: 0; errno of the memory.
 */
int disk_filter_new(const char *tenant, uint64_t n_keys, struct disk_filter **ret, struct errmsg *e);
void disk_filter_add(struct disk_filter *x, const struct chunk_key *key);

/* Takes @x over, instead of the present filter of the tenant; a tenant that wants none gets none. */
void disk_filters_put(struct disk_filters *f, struct disk_filter *x);

/* Adds to the tenant's present filter, if it wants one. */
void disk_filters_add(struct disk_filters *f, const char *tenant, const struct chunk_key *key);
void disk_filters_removed(struct disk_filters *f, const char *tenant, uint64_t n_keys);

/*
 * Whether so many keys were added or removed that a new filter is worth its time, or there is none yet. False
 * for a tenant that wants none.
 */
bool disk_filters_is_worn(struct disk_filters *f, const char *tenant);

/* The tenant has no page on the tier. */
void disk_filters_drop(struct disk_filters *f, const char *tenant);

/* ---- the loop ---- */

/*
 * The tenant has a session now. A new one may take the place of the tenant that had none for longest. Return:
 * whether the thread has to look for its pages.
 */
bool disk_filters_want(struct disk_filters *f, const char *tenant, uint64_t now_ms);
/* Tenants that had no session since @before_ms lose their filters. */
void disk_filters_expire(struct disk_filters *f, uint64_t before_ms);

/*
 * A descriptor of the tenant's filter, read-only, for a client. @ret_fd: the caller's. Return: 0; -ENOENT:
 * the tenant has no page on the tier; -EMFILE.
 */
int disk_filters_open(struct disk_filters *f, const char *tenant, int *ret_fd, size_t *ret_bytes,
                      uint64_t *ret_object);

uint64_t disk_filters_object(struct disk_filters *f, const char *tenant); /* its number; 0: none */

/* Whether the tier is ready and the thread has not looked for the tenant's pages yet. */
bool disk_filters_is_unknown(struct disk_filters *f, const char *tenant);

/* False: the tier does not have the page, or the tenant wants no filter. True while that is unknown. */
bool disk_filters_has(struct disk_filters *f, const char *tenant, const struct chunk_key *key);
