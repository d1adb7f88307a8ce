/*
 * A tenant: one trust domain, an account (account.h) on one device. The structure owns the shared objects
 * (index, control page), the groups of pages, the accounts and the ghosts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/tenant_types.h"

struct account;
struct errmsg;
struct space;

struct tenant_options {
    uint64_t number;
    struct account *account; /* the tenant takes a reference */
    struct device *device;
    const char *device_name; /* "gpu0"; NULL: the host's memory, which is not part of a tenant's name */
    uint64_t quota_bytes, guarantee_bytes;
    const uint8_t *secret;  /* [32] of the daemon: the index key is derived from it and the account */
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

/* The group of (space, class), created if it is new; the caller checks limits. Return: 0; -ENOMEM. */
int tenant_group(struct tenant *t, struct space *space, unsigned page_class, struct group **ret_group);
struct group *tenant_group_find(const struct tenant *t, const struct space *space, unsigned page_class);

void tenant_groups_drop_empty(struct tenant *t); /* those without a slot in use */

/* Frees the groups of @space, which are empty. @space: NULL: of all spaces. */
void tenant_groups_free(struct tenant *t, const struct space *space);
