/*
 * The structures of the pool and its spans; pool.h has the terms. For pool.c and span.c, and for readers of
 * the store: only functions of pool.h and span.h change them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/config/limits.h"
#include "daemon/store/slot.h"
#include "proto/protocol.h"

struct errmsg;
struct extent;
struct host_memory;
struct space;
struct tenant;

#define POOL_SLOTS_PER_SPAN_MIN 8

struct slot_queue { /* doubly linked through slot.next/prev; empty: head == SLOT_NONE */
    uint32_t head, tail, n;
};

struct span_list {
    struct span *head, *tail;
};

struct group {
    struct tenant *tenant;
    struct space *space;
    unsigned page_class;
    size_t slot_bytes, page_bytes;
    struct span_list partial;                  /* spans with a free slot */
    struct span_list full;                     /* all other spans */
    uint32_t n_spans, n_used;                  /* slots in use */
    uint32_t n_pages;                          /* COMMITTED; the store counts them */
    struct slot_queue small_queue, main_queue; /* unheld pages: evict_queue.h */
    uint64_t offload_after_ms;                 /* no page of it is written to the disk before */
    struct group *next;                        /* of the tenant */
};

struct span {
    uint32_t number;
    struct pool_extent *extent;
    struct group *group;
    uint32_t first_unit, n_units, n_slots;
    uint32_t n_used;       /* not FREE */
    uint32_t n_busy;       /* RESERVED, held or pinned: the span cannot be emptied */
    uint32_t n_fresh_from; /* slots from here on were never used, and are not in the free list */
    uint32_t free;
    uint32_t entered; /* when its newest page entered a queue: see evict_queue.h */
    struct slot *slots;
    struct span_list *list; /* of the group: partial or full */
    struct span *prev, *next;
};

struct pool_extent {
    uint64_t id; /* never used again */
    struct tenant *tenant;
    struct extent *memory; /* of the host; NULL: on a GPU, never mapped here */
    int gpu_fd;            /* on a GPU: the descriptor that clients import; else -1 */
    struct slot_records records;
    uint32_t *span_of_unit; /* [n_units] number of the span; UINT32_MAX: none */
    uint32_t n_units, n_units_used;
    bool reclaimed; /* reclaimed for a lender (share.h): takes no new page */
    bool retired;   /* never takes a page again: a dead process may still write to it (quarantine.h) */
};

/*
 * A slot with its span and group, resolved once from its number. Valid until the slot is given back. Zeros
 * with the number SLOT_NONE: no page.
 */
struct page_handle {
    uint32_t number;
    struct slot *slot;
    struct span *span;
    struct group *group;
};

#define PAGE_NONE ((struct page_handle){.number = SLOT_NONE})

static inline bool pool_extent_is_closed(const struct pool_extent *x) /* takes no new page */
{
    return x->reclaimed || x->retired;
}

struct pool_memory { /* of an extent that belongs to no tenant yet */
    uint64_t id;
    struct extent *memory; /* see struct pool_extent */
    int gpu_fd;
    struct slot_records records;
};

struct pool_source {
    /*
     * Takes zeroed memory that the keeper has stored. *@ret: the caller's. Return: 0; -EINPROGRESS: it is
     * being created, and the source tells those who wait when that has ended; -EAGAIN: retry later; -ENOMEM:
     * no memory is left, and the pool continues with the extents that it has.
     */
    int (*take)(void *ctx, struct pool_memory *ret, struct errmsg *e);
    void *ctx;
};

struct pool_keeper { /* persists extents over a restart */
    /*
     * Stores copies of an extent's descriptors, and waits until that is done. Called on another thread than
     * the loop's, before added(). Return: 0; errno, which is then given to not_stored().
     */
    int (*store)(void *ctx, uint64_t id, bool on_gpu, int memory_fd, int records_fd);
    void (*not_stored)(void *ctx, uint64_t id, int err);
    /* Called before the first use of @x, which is in the list of extents. */
    void (*added)(void *ctx, const struct pool_extent *x);
    /* Called when @x is not in the list of extents any longer. Its memory still exists. */
    void (*removed)(void *ctx, const struct pool_extent *x);
    void *ctx;
};

struct pool_serials { /* numbers that are used once, shared by all pools of a daemon */
    uint64_t next_extent;
    uint64_t generation;         /* the last one used */
    uint64_t *generation_record; /* written before a generation is used; or NULL */
};

struct pool {
    uint64_t pool_bytes, extent_bytes, unit_bytes;
    struct pool_serials *serials;
    struct pool_extent **extents; /* [n_extents], any order */
    uint32_t n_extents, n_extents_max;
    struct span **spans;    /* [n_spans_max] by number */
    uint32_t *free_numbers; /* stack of unused span numbers */
    uint32_t n_free_numbers, n_spans_max;
    uint32_t n_entered;               /* the clock of evict_queue.h */
    bool on_gpu;                      /* else in memory of the host, which this process maps */
    const struct pool_keeper *keeper; /* or NULL */
    const struct pool_source *source; /* of new extents */
    struct host_memory *freeing;      /* frees memory of the host; NULL: the pool does it at once */
    bool is_frozen;                   /* the daemon ends, and the next one has the memory as it is */
};

struct span_owner {
    const uint8_t *table_digest;
    uint32_t first_head, n_heads;
    uint32_t place; /* of the device in the journal */
    uint32_t session;
    bool may_grow;
};
