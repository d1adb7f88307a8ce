/*
 * One chunk's packed bytes as this process holds them: in the arena or on the heap while private, in the
 * daemon's pool once published. A page is written by the one sequence that claimed it until all layers are
 * packed; from then on it is immutable and may be shared by forks, which count here and not with the daemon.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/abi.h"
#include "gpu/page_layout.h"
#include "proto/page.h"

struct kvc_client;
struct lease;
struct mapped_extent;
struct model_table;

enum page_place {
    PAGE_HEAP = 0, /* this process's memory: embedded, on a GPU, or the daemon refused or went away */
    PAGE_ARENA = 1,
    PAGE_POOL = 2, /* leased, mapped read-only; or it was, in a pool that is gone: page_is_shared() */
};

struct page {
    struct page *next;         /* of the free ones */
    struct model_table *table; /* borrowed: a sequence that holds pages holds their table */
    unsigned refs;
    enum page_place place;
    enum page_class class;
    bool has_key;
    struct chunk_key key;
    uint8_t *bytes;               /* header, then payload; NULL on a GPU: */
    cu_ptr device;                /* the same in its memory, the header's bytes unused */
    size_t arena_off;             /* PAGE_ARENA */
    struct mapped_extent *extent; /* PAGE_POOL */
    struct lease *lease;
    uint32_t lease_item;
    uint32_t slot;
    uint64_t generation; /* with slot: these bytes and no others, as long as the pool lives */
};

/* What a page of the pool needs to know of its grant. */
struct page_grant {
    struct mapped_extent *extent;
    uint64_t offset, generation;
    uint32_t slot;
    struct lease *lease;
    uint32_t item;
};

/* Slots on the heap: they come in slabs, so that a chunk does not cost an mmap() each. */
struct heap_pool {
    size_t slot_bytes;
    void *free; /* slots, linked through their first word */
    void **slabs;
    size_t n_slabs;
};

void heap_pool_deinit(struct heap_pool *p);

/**
 * page_claim() - a page to encode into
 * @in_arena: else on the heap
 * Return: 0 with one reference; -ENOSPC: the arena is full; -ENOMEM.
 */
int page_claim(struct kvc_client *c, struct model_table *t, enum page_class class, bool in_arena,
               struct page **ret);

/* A page that lies in the pool: the grant's extent and item are handed over. Return: 0; -ENOMEM. */
int page_leased(struct kvc_client *c, struct model_table *t, enum page_class class,
                const struct chunk_key *key, const struct page_grant *grant, struct page **ret);

/* A private page was published, or found again: from now on it is read where it lies in the pool. */
void page_move_to_pool(struct kvc_client *c, struct page *p, const struct page_grant *grant);

/* Whether it lies in the daemon's pool, held by a lease that the daemon knows. */
bool page_is_shared(const struct page *p);

/* A page of the arena or the pool goes on on the heap, where it is in nobody's way. Return: 0; -ENOMEM,
 * nothing changed. */
int page_move_to_heap(struct kvc_client *c, struct page *p);

static inline struct page *page_ref(struct page *p)
{
    p->refs++;
    return p;
}

/* The last reference gives the bytes back; releases are sent by leases_flush(). */
void page_unref(struct kvc_client *c, struct page *p);

/* On a GPU its address there: to be given to kernels, not to be touched. */
static inline uint8_t *page_payload(const struct page *p)
{
    return (p->bytes ? p->bytes : (uint8_t *) (uintptr_t) p->device) + PAGE_HEADER_BYTES;
}
