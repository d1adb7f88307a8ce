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
    struct span_list partial;                  /* spans that a slot can be taken from */
    struct span_list full;                     /* the others */
    uint32_t n_spans, n_used;                  /* slots RESERVED or COMMITTED */
    uint32_t n_pages;                          /* COMMITTED; kept by the store */
    struct slot_queue small_queue, main_queue; /* S3-FIFO over unheld pages, evict.c */
    struct group *next;                        /* of the tenant */
};

struct span {
    uint32_t number;
    struct pool_extent *extent;
    struct group *group;
    uint32_t first_unit, n_units, n_slots;
    uint32_t n_used;       /* not FREE */
    uint32_t n_busy;       /* RESERVED or held: what forbids emptying the span */
    uint32_t n_fresh_from; /* slots from here on were never used: not in the free list yet */
    uint32_t free;
    struct slot *slots;
    struct span_list *list; /* of the group: partial or full */
    struct span *prev, *next;
};

struct pool_external { /* memory that a client allocated; see lend.h */
    uint8_t handle[LENT_HANDLE_BYTES];
    uint32_t session;
    pid_t pid;
    bool gone; /* the session ended: what is in there may be anything, whoever holds it */
};

struct pool_extent {
    uint64_t id; /* never used again */
    struct tenant *tenant;
    struct extent *memory;      /* of the host; NULL: on a GPU, never mapped here */
    int gpu_fd;                 /* on a GPU: what clients import; else -1 */
    struct pool_external *lent; /* on a GPU, instead of a descriptor; not kept over restarts; or NULL */
    struct slot_records records;
    uint32_t *span_of_unit; /* [n_units] number, or UINT32_MAX */
    uint32_t n_units, n_units_used;
    bool leaving; /* asked back by a lender (share.h): nothing new in it */
    bool retired; /* the same for good: a dead process may still write it (quarantine.h); recorded */
};

static inline bool pool_extent_is_gone(const struct pool_extent *x)
{
    return x->lent && x->lent->gone;
}

static inline bool pool_extent_is_closed(const struct pool_extent *x) /* no new page comes into it */
{
    return x->leaving || x->retired;
}

struct pool_source { /* of memory on a GPU */
    /*
     * Memory of the pool's extent_bytes, filled with zeros; *@ret_fd is the caller's. Return: 0; -EAGAIN: not
     * yet, come again; -ENOMEM: the device has none left; the pool makes do with what it has.
     */
    int (*take)(void *ctx, int *ret_fd, struct errmsg *e);
    void *ctx;
};

struct pool_keeper { /* somebody who wants extents to outlive this process */
    /* Before the first use of @x, with the writable descriptor of its memory (-1: lent); it is in the list of
     * extents. */
    void (*added)(void *ctx, const struct pool_extent *x, int owner_fd);
    void (*removed)(void *ctx,
                    const struct pool_extent *x); /* it is out of the list, its memory still there */
    void *ctx;
};

struct pool_serials { /* shared by all pools of a daemon: numbers that are never given twice */
    uint64_t next_extent;
    uint64_t generation;         /* the last one given */
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
    const struct pool_keeper *keeper; /* or NULL */
    const struct pool_source *source; /* NULL: extents are memory of the host, made here */
};

struct span_owner {
    const uint8_t *table_digest;
    uint32_t first_head, n_heads, uid;
    uint32_t place; /* of the device, in the journal */
    uint32_t session;
    pid_t pid; /* what other sessions of this process lent cannot be used here: no process opens its own
                  handle. 0: nothing lent */
    bool may_grow;
};
