/*
 * A tenant: one trust domain, today one uid, on one device. The structure owns the shared objects (index,
 * control page), the groups of pages, the accounts and the ghosts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/store/tenant_types.h"

struct errmsg;
struct space;

struct tenant_options {
    uid_t uid;
    struct device *device;
    const char *device_name; /* "gpu0"; NULL: the host's memory, which is not part of a tenant's name */
    uint64_t quota_bytes, guarantee_bytes;
    const uint8_t *secret;  /* [32] of the daemon: the index key is derived from it and the uid */
    const uint8_t *boot_id; /* [BOOT_ID_BYTES] */
    uint32_t n_ghosts;
};

/* Return: 0; errno of the memory. */
int tenant_new(const struct tenant_options *o, struct tenant **ret, struct errmsg *e);
struct tenant *tenant_free(struct tenant *t); /* its slots are free, its groups empty */

static inline void tenant_freep(struct tenant **t)
{
    *t = tenant_free(*t);
}

/* The group of (space, class), created if it is new. Return: 0; -ENOMEM. */
int tenant_group(struct tenant *t, struct space *space, unsigned page_class, struct group **ret_group);
struct group *tenant_group_find(const struct tenant *t, const struct space *space, unsigned page_class);

/* Frees the groups of @space, which are empty. @space: NULL: of all spaces. */
void tenant_groups_free(struct tenant *t, const struct space *space);

/**
 * tenant_index_insert() - publish a key
 * @p: read for the tenant's pages while a larger index is filled
 *
 * An index near its load limit is replaced by a larger one, which is filled a little with every insertion,
 * so that no insertion takes long. When it has all keys, the old one is marked as moved.
 *
 * Return: 0; -ENOMEM, -ENOSPC of the larger index.
 */
int tenant_index_insert(struct tenant *t, struct pool *p, const struct chunk_key *key, uint32_t slot,
                        unsigned page_class, uint64_t generation, struct errmsg *e);

/* At the start, before the index has a key: makes room for @n_pages. Return: 0; errno of the memory. */
int tenant_index_reserve(struct tenant *t, uint64_t n_pages, struct errmsg *e);
void tenant_index_remove(struct tenant *t, const struct chunk_key *key);

/* The slot of @key, confirmed by the slot record; SLOT_NONE: the key has no page. */
uint32_t tenant_index_find(const struct tenant *t, const struct pool *p, const struct chunk_key *key);
