/*
 * The daemon's extents that this client has mapped, read-only. Imported when a page in them is first granted,
 * kept while pages of them are held, and a few beyond that: a text that is dropped and found again maps
 * nothing.
 *
 * On a GPU an extent is written, too, once a slot in it was reserved, and what is queued may go on reading it
 * when its last page is dropped: nothing is unmapped before the stream was waited for (extents_trim()).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/extent.h"
#include "gpu/device.h"
#include "proto/wire.h"

struct connection;
struct errmsg;
struct gpu;

#define EXTENTS_IDLE_MAX 4

struct mapped_extent {
    struct mapped_extent *next; /* NULL for an orphan: only its pages know it */
    bool orphan; /* of a pool that is gone: no daemon writes it any more, its number means nothing */
    bool lent;   /* memory of a client (kvc_client_lend()): the daemon forgets it when it is restarted */
    bool own;    /* of this one */
    bool lost; /* an orphan that may be anything by now: its lender's, and nobody knows what became of that */
    bool unwanted; /* asked back: not kept when its last page went, the memory is somebody else's then */
    uint64_t id;
    size_t n_pages; /* held pages that lie in it */
    struct extent *extent;
    struct cuda_extent *device; /* instead of it, on a GPU */
};

struct lent_memory { /* of this client; see lend.c */
    struct lent_memory *next;
    cu_ptr at;
    size_t bytes;
    struct cu_ipc_mem_handle handle;
};

struct extent_cache {
    struct gpu *gpu;             /* whose memory they are; NULL: the host's */
    struct mapped_extent *first; /* most recently used first */
    struct mapped_extent *dead;  /* orphans without pages, mapped still */
    struct lent_memory *lent;
};

/**
 * extents_get() - the mapping of extent @id, imported if need be; counts one page in it
 * Return: 0; -EXDEV: memory that a client lent, which this one cannot use: it is of another client of this
 * process, or its lender is gone; -ENOTCONN, -EPROTO, -EMFILE, -ENOMEM …
 */
int extents_get(struct extent_cache *cache, struct connection *c, uint64_t id, struct mapped_extent **ret,
                struct errmsg *e);

static inline size_t mapped_extent_bytes(const struct mapped_extent *x)
{
    return x->device ? cuda_extent_bytes(x->device) : extent_bytes(x->extent);
}

/* One page less. */
void extents_put(struct extent_cache *cache, struct mapped_extent *x);

/*
 * The pool is gone, or (@only_lent) what clients lent to it: mappings stay while pages in them are used, and
 * are not found any more. Those of other clients' memory are lost.
 */
void extents_orphan(struct extent_cache *cache, bool only_lent);

/* The daemon asks for extent @id: once no page in it is held, it is not kept mapped. */
void extents_unwant(struct extent_cache *cache, uint64_t id);

/* Whether there is anything to unmap. */
bool extents_have_unused(const struct extent_cache *cache);

/* Unmaps what is not used, but for a few. On a GPU the caller has waited for the stream; on the host it
 * happens by itself. */
void extents_trim(struct extent_cache *cache);

void extents_deinit(struct extent_cache *cache);
