/*
 * A tenant: one trust domain, today one uid, on one device. Owns its shared objects (index, control page),
 * its groups of pages, its accounts and its ghosts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/store/ghost.h"
#include "daemon/store/pool.h"
#include "proto/index.h"
#include "proto/shared.h"

struct device;
struct errmsg;
struct space;

struct tenant {
    struct tenant *next; /* of the device */
    struct device *device;
    uint32_t number; /* order of creation, for paging STATUS */
    uid_t uid;
    char name[32]; /* "uid-1000", on a GPU "uid-1000@gpu0" */
    bool isolated; /* false: it has the daemon's own uid or is root, who can write what we share */
    uint8_t index_key[INDEX_KEY_BYTES];
    uint8_t boot_id[BOOT_ID_BYTES];

    struct extent *index_memory;
    struct index_writer index;
    uint64_t index_object;      /* raised with every new object */
    struct extent *next_memory; /* a larger index being filled beside the present one; NULL: none */
    struct index_writer next_index;
    uint32_t next_span, next_slot; /* how far the pool was walked for it */
    struct extent *control_memory;
    struct control_page *control;
    uint64_t control_object;
    unsigned n_digests[CONTROL_MODELS_MAX];
    unsigned n_models;

    struct group *groups;
    struct ghosts ghosts;

    /* accounts */
    uint64_t quota_bytes;     /* the most: pages and arenas */
    uint64_t guarantee_bytes; /* of the pool, in whole extents; see share.h */
    bool quota_is_set,
        guarantee_is_set;    /* by an operator: what the configuration says does not change them */
    uint64_t awaited_extent; /* lent, and asked back for this tenant; 0: none */
    bool wants_room;         /* it was refused for want of that since the last share_tick() */
    uint64_t wants_until_ms;
    uint64_t page_bytes; /* slots in use */
    uint64_t held_bytes; /* of them, held or reserved */
    uint64_t arena_bytes;
    uint32_t n_extents; /* kept by the pool */
    uint32_t n_sessions;
    uint64_t n_pages;                 /* committed */
    uint64_t hits, misses, evictions; /* chunks that clients found and missed, by their own count */
    uint64_t misses_by[8];            /* MissReason, counted here: see page_count_miss() */
};

/* @secret: [32], the daemon's; the index key is derived from it and the uid. Quota and guarantee are the
 * device's. */
int tenant_new(uid_t uid, struct device *device, const uint8_t secret[static 32],
               const uint8_t boot_id[static BOOT_ID_BYTES], uint32_t n_ghosts, struct tenant **ret,
               struct errmsg *e);
struct tenant *tenant_free(struct tenant *t); /* its slots were given back, its groups freed */

static inline void tenant_freep(struct tenant **t)
{
    *t = tenant_free(*t);
}

static inline uint64_t tenant_used_bytes(const struct tenant *t)
{
    return t->page_bytes + t->arena_bytes;
}

/* Bytes the quota still allows. */
static inline uint64_t tenant_room_bytes(const struct tenant *t)
{
    uint64_t used = tenant_used_bytes(t);

    return used < t->quota_bytes ? t->quota_bytes - used : 0;
}

/* The group of (space, class), created if @ret_group is new. Return: 0; -ENOMEM. */
int tenant_group(struct tenant *t, struct space *space, unsigned page_class, struct group **ret_group);
struct group *tenant_group_find(const struct tenant *t, const struct space *space, unsigned page_class);
void tenant_groups_free(struct tenant *t,
                        const struct space *space); /* empty groups of @space; NULL: of all */

/**
 * tenant_index_insert() - publish a key
 * @p: walked for the pages of the tenant while a larger object is filled
 *
 * A crowded index is followed by a larger one, filled a little with every insertion, so that none of them
 * takes long; when it has everything the old one is marked moved.
 *
 * Return: 0; -ENOMEM, -ENOSPC of the new object.
 */
int tenant_index_insert(struct tenant *t, struct pool *p, const struct chunk_key *key, uint32_t slot,
                        unsigned page_class, uint64_t generation, struct errmsg *e);

/* At the start, before any page is in it: room for @n_pages. Return: 0; errno of the memory. */
int tenant_index_reserve(struct tenant *t, uint64_t n_pages, struct errmsg *e);
void tenant_index_remove(struct tenant *t, const struct chunk_key *key);

/* Slot of @key, checked against the daemon's own record; SLOT_NONE if there is none. */
uint32_t tenant_index_find(const struct tenant *t, const struct pool *p, const struct chunk_key *key);
