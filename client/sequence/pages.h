/*
 * One chunk's packed bytes as this process holds them: in the arena or on the heap while private,
 * in the daemon's pool once published. A page is written by the one sequence that claimed it until
 * all layers are packed; from then on it is immutable and may be shared by forks, which are
 * counted here and not by the daemon.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/abi.h"
#include "gpu/page_layout.h"
#include "proto/page.h"

struct client_lease;
struct gpu_copy;
struct kvc_client;
struct mapped_extent;
struct model_table;

enum page_place {
    PAGE_HEAP = 0, /* memory of this process: embedded, on a GPU, or the daemon refused the page or is gone */
    PAGE_ARENA = 1,
    PAGE_POOL = 2,   /* mapped read-only; page_is_shared(): still leased, in a pool that still exists */
    PAGE_ABSENT = 3, /* before the window of a match: only its key is known, and nothing reads it */
};

struct page {
    struct page *next;         /* of the free page handles */
    struct model_table *table; /* borrowed: a sequence that holds pages holds their table */
    unsigned refs;
    enum page_place place;
    enum page_class class;
    bool has_key;
    struct chunk_key key;
    uint8_t *bytes;               /* header, then payload; NULL on a GPU */
    cu_ptr device;                /* address on a GPU; the bytes of the header are unused there */
    struct gpu_copy *staging;     /* the page is packed on a GPU, and its bytes are not here yet; else NULL */
    size_t arena_off;             /* PAGE_ARENA */
    struct mapped_extent *extent; /* PAGE_POOL */
    struct client_lease *lease;
    uint32_t lease_item;
    uint32_t slot;
    uint64_t generation; /* with slot: identifies the bytes as long as the pool lives */
};

/* The place of a granted page, and the lease that holds it. */
struct page_grant {
    struct mapped_extent *extent;
    uint64_t offset, generation;
    uint32_t slot;
    struct client_lease *lease;
    uint32_t item;
};

/* Memory of this process for private pages outside the arena: the heap (pages.c), or GPU
 * memory (client/gpu/gpu_table.c). */
struct page_ops {
    /* For a page of p->table and p->class: sets p->bytes or p->device. Return: 0; -ENOMEM, -EBUSY, -EIO. */
    int (*take)(struct kvc_client *c, struct page *p);
    void (*give)(struct kvc_client *c, struct page *p);

    /* Copies the payload of @from, wherever it lies; both have one table and class. Return: 0; -EIO. */
    int (*copy)(struct kvc_client *c, struct page *to, const struct page *from);
};

extern const struct page_ops page_host_ops;

/**
 * page_claim() - a private page to encode into
 * @in_arena: else in memory of this process
 * Return: 0 with one reference; -ENOSPC: the arena is full; -ENOMEM.
 */
int page_claim(struct kvc_client *c, struct model_table *t, enum page_class class, bool in_arena,
               struct page **ret);

/* A page that lies in the pool; takes over the grant's extent and item. Return: 0; -ENOMEM. */
int page_leased(struct kvc_client *c, struct model_table *t, enum page_class class,
                const struct chunk_key *key, const struct page_grant *grant, struct page **ret);

/* A page without bytes, in the place of a chunk that a match left out. Return: 0; -ENOMEM. */
int page_absent(struct kvc_client *c, struct model_table *t, enum page_class class,
                const struct chunk_key *key, struct page **ret);

/* Reads a private page from the pool from now on, after it was published or leased again. */
void page_move_to_pool(struct kvc_client *c, struct page *p, const struct page_grant *grant);

/* Whether it lies in the daemon's pool, held by a lease that the daemon has. */
bool page_is_shared(const struct page *p);

/* Whether there is something to publish: it is neither shared nor absent. */
bool page_is_private(const struct page *p);

/* Moves a page from the arena or the pool into memory of this process.
 * Return: 0; -ENOMEM, nothing changed. */
int page_move_to_heap(struct kvc_client *c, struct page *p);

static inline struct page *page_ref(struct page *p)
{
    p->refs++;
    return p;
}

/* The last reference gives the bytes back; client_leases_flush() sends the releases. */
void page_unref(struct kvc_client *c, struct page *p);

/* On a GPU a device address, which only kernels may read. NULL: the page is absent. */
static inline uint8_t *page_payload(const struct page *p)
{
    if (p->place == PAGE_ABSENT)
        return NULL;
    return (p->bytes ? p->bytes : (uint8_t *) (uintptr_t) p->device) + PAGE_HEADER_BYTES;
}
