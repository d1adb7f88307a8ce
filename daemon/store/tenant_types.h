/* The structure of a tenant: see tenant.h. pool.c, store.c and session.c update its accounts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/store/ghost.h"
#include "daemon/store/pool_types.h"
#include "proto/index.h"
#include "proto/shared.h"

struct device;

struct tenant {
    struct tenant *next; /* of the device */
    struct device *device;
    uint32_t number; /* order of creation, the cursor of STATUS */
    uid_t uid;
    char name[32]; /* "uid-1000", on a GPU "uid-1000@gpu0" */
    bool isolated; /* false: uid 0 or the daemon's own uid, which can write memory that the daemon shares */
    uint8_t index_key[INDEX_KEY_BYTES];
    uint8_t boot_id[BOOT_ID_BYTES];

    struct extent *index_memory;
    struct index_writer index;
    uint64_t index_object;      /* raised with every new object */
    struct extent *next_memory; /* a larger index that is being filled; NULL: none */
    struct index_writer next_index;
    uint32_t next_span, next_slot; /* the slot at which filling continues */
    struct extent *control_memory;
    struct control_page *control;
    uint64_t control_object;
    unsigned n_digests[CONTROL_MODELS_MAX];
    unsigned n_models;

    struct group *groups;
    struct ghosts ghosts;

    /* accounts */
    uint64_t quota_bytes;                /* maximum of pages and arenas together */
    uint64_t guarantee_bytes;            /* of the pool, in whole extents; see share.h */
    bool quota_is_set, guarantee_is_set; /* by an operator: a reload does not change the value */
    uint64_t awaited_extent; /* a borrowed extent that is being reclaimed for this tenant; 0: none */
    bool lacks_space;        /* an allocation failed for lack of space since the last share_tick() */
    uint64_t reclaim_until_ms;
    uint64_t page_bytes; /* slots in use */
    uint64_t held_bytes; /* of page_bytes: held or reserved */
    uint64_t arena_bytes;
    uint32_t n_extents; /* counted by the pool */
    uint32_t n_sessions;
    uint64_t n_pages;                 /* committed */
    uint64_t hits, misses, evictions; /* hits and misses as clients report them */
    uint64_t misses_by[8];            /* by MissReason, counted by page_count_miss() */
};

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
