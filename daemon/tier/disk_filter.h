/*
 * The Bloom filters that clients see: one per tenant (proto/bloom.h). The thread of the tier writes them, the
 * loop passes their descriptors to clients and asks them.
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
    char tenant[DISK_TENANT_BYTES];
    struct extent *memory;
    uint64_t object; /* raised with every new object */
    struct bloom_writer writer;
    uint64_t n_removed; /* keys that were removed from the tier since the object was made */
};

struct disk_filters {
    pthread_mutex_t lock;
    struct disk_filter *list;
    uint64_t last_object;
};

void disk_filters_init(struct disk_filters *f);
void disk_filters_deinit(struct disk_filters *f);

/* ---- the thread of the tier ---- */

/*
 * A filter with room for @n_keys. disk_filters_put() shows it to clients; while its keys are added, the
 * tenant's present one answers. Return: 0; errno of the memory.
 */
int disk_filter_new(const char *tenant, uint64_t n_keys, struct disk_filter **ret, struct errmsg *e);
void disk_filter_add(struct disk_filter *x, const struct chunk_key *key);

/* Takes @x over, instead of the tenant's present filter if there is one. */
void disk_filters_put(struct disk_filters *f, struct disk_filter *x);

/* Adds to the tenant's present filter. */
void disk_filters_add(struct disk_filters *f, const char *tenant, const struct chunk_key *key);
void disk_filters_removed(struct disk_filters *f, const char *tenant, uint64_t n_keys);

/* Whether so many keys were added or removed that a new filter is worth its time, or there is none. */
bool disk_filters_is_worn(struct disk_filters *f, const char *tenant);

/* The tenant has no page on the tier. NULL: no tenant has. */
void disk_filters_drop(struct disk_filters *f, const char *tenant);

/* ---- the loop ---- */

/*
 * A descriptor of the tenant's filter, read-only, for a client. @ret_fd: the caller's. Return: 0; -ENOENT:
 * the tenant has no page on the tier; -EMFILE.
 */
int disk_filters_open(struct disk_filters *f, const char *tenant, int *ret_fd, size_t *ret_bytes,
                      uint64_t *ret_object);

uint64_t disk_filters_object(struct disk_filters *f, const char *tenant); /* its number; 0: none */

/* False: the tier does not have the page. */
bool disk_filters_has(struct disk_filters *f, const char *tenant, const struct chunk_key *key);
