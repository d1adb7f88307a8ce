/* The structure of a tenant: see tenant.h. pool.c, store.c and session.c update its accounts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/account.h"
#include "daemon/store/ghost.h"
#include "daemon/store/kept.h"
#include "daemon/store/pool_types.h"
#include "proto/index.h"
#include "proto/shared.h"

struct advice;
struct device;

#define TENANT_NAME_BYTES 64
/* The first index has room for so many pages. Index and slot records of so many pages count for no quota. */
#define TENANT_PAGES_FREE 4096

struct tenant_counters {   /* since the tenant exists */
    uint64_t hits, misses; /* as clients report them */
    uint64_t evictions;
    uint64_t misses_by[8]; /* by MissReason, counted by page_count_miss() */
};

struct tenant {
    struct tenant *next; /* of the device */
    struct device *device;
    uint64_t number;        /* order of creation, the cursor of STATUS; never used again */
    bool has_series;        /* its metrics have a label of their own: TENANT_SERIES_MAX */
    bool has_advice;        /* of its own: ADVICE_TENANTS_MAX */
    struct advice *advice;  /* NULL: no chunk was looked up yet */
    uint32_t n_refs;        /* sessions, also ended ones with jobs */
    uint64_t idle_since_ms; /* 0: it is in use; see devices_forget_idle() */
    struct account *account;
    char name[TENANT_NAME_BYTES]; /* "uid-1000", on a GPU "uid-1000@gpu0" */
    uint8_t *index_key;           /* [INDEX_KEY_BYTES], of secret_memory_new() */
    uint8_t boot_id[BOOT_ID_BYTES];

    struct extent *index_memory;
    struct index_writer index;
    uint64_t index_object;          /* raised with every new object */
    struct extent *next_memory;     /* a larger index in the making (tenant_index.h); NULL: none */
    int next_fd;                    /* its writable descriptor */
    size_t next_allocated;          /* its bytes that have memory, from the start */
    struct index_writer next_index; /* object is NULL until all bytes have memory */
    uint32_t next_span, next_slot;  /* the slot at which filling continues */
    struct extent *old_memory;      /* the earlier index, whose memory is being given back; NULL: none */
    size_t old_bytes_left;
    uint64_t index_pause; /* pages to be published before another larger index is made; 0: none */
    struct extent *control_memory, *old_control; /* old: the moved one, which clients may still read */
    struct control_page *control;
    uint64_t control_object;
    unsigned n_digests[CONTROL_MODELS_MAX];
    uint32_t
        n_model_users[CONTROL_MODELS_MAX]; /* models of sessions; an entry without is dropped for another */
    unsigned n_models;

    struct group *groups;
    struct ghosts ghosts;
    struct kept_pages kept; /* pages that an operator pinned */

    /* accounts */
    uint64_t quota_bytes;                /* maximum of tenant_used_bytes() */
    uint64_t guarantee_bytes;            /* of the pool, in whole extents; see share.h */
    bool quota_is_set, guarantee_is_set; /* by an operator: a reload does not change the value */
    uint64_t awaited_extent; /* a borrowed extent that is being reclaimed for this tenant; 0: none */
    bool lacks_space;        /* an allocation failed for lack of space since the last share_tick() */
    uint64_t reclaim_until_ms;
    uint64_t page_bytes;  /* slots in use */
    uint64_t n_slots;     /* the same slots, counted */
    uint64_t index_bytes; /* of all index objects but the first */
    uint64_t held_bytes;  /* of page_bytes: held or reserved */
    uint64_t arena_bytes;
    uint32_t n_extents; /* counted by the pool */
    uint32_t n_sessions;
    uint64_t n_pages; /* committed */
    struct tenant_counters counters;
};

/* Indexes, and the records of slots. */
static inline uint64_t tenant_overhead_bytes(const struct tenant *t)
{
    uint64_t n = t->n_slots > TENANT_PAGES_FREE ? t->n_slots - TENANT_PAGES_FREE : 0;

    return t->index_bytes + n * sizeof(struct slot);
}

static inline uint64_t tenant_used_bytes(const struct tenant *t)
{
    return t->page_bytes + t->arena_bytes + tenant_overhead_bytes(t);
}

/* What one slot more would add to tenant_used_bytes(). */
static inline uint64_t tenant_slot_charge(const struct tenant *t, size_t slot_bytes)
{
    return slot_bytes + (t->n_slots >= TENANT_PAGES_FREE ? sizeof(struct slot) : 0);
}

/* Bytes the quota still allows. */
static inline uint64_t tenant_room_bytes(const struct tenant *t)
{
    uint64_t used = tenant_used_bytes(t);

    return used < t->quota_bytes ? t->quota_bytes - used : 0;
}
