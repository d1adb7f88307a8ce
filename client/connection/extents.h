/*
 * The extents of the daemon that this client has mapped read-only. The client imports an extent when a page
 * in it is first granted, and keeps the mapping while it holds pages of the extent. A few unused extents stay
 * mapped too, so that a text that is dropped and matched again needs no new mapping.
 *
 * On a GPU an extent is also written, after a slot in it was reserved, and queued work may read it after its
 * last page was dropped: nothing is unmapped before the stream was waited for (extents_trim()).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/abi.h"
#include "proto/wire.h"

struct connection;
struct cuda_extent;
struct errmsg;
struct extent;
struct extent_cache;
struct gpu;

#define EXTENTS_IDLE_MAX 4

struct mapped_extent {
    struct mapped_extent *next; /* NULL for an orphan: only its pages reference it */

    bool orphan;   /* its pool is gone: no daemon writes it, and its number belongs to no extent */
    bool unwanted; /* the daemon reclaims it: it is unmapped when its last page is dropped */

    uint64_t id;
    size_t n_pages; /* held pages in it */
    size_t bytes;
    const uint8_t *host; /* address in host memory; NULL on a GPU */
    cu_ptr device;       /* address on a GPU */

    /* One of the two owns the mapping. */
    struct extent *host_extent;
    struct cuda_extent *cuda_extent;
};

/* How extents are mapped: into host memory (extents.c) or on a GPU (client/gpu/gpu_extents.c). */
struct extent_ops {
    /* Maps the memory behind @fd, which is transferred, also on failure. @bytes > 0.
     * Return: 0; -EPROTO, -ENOMEM ... */
    int (*import)(struct extent_cache *cache, int fd, size_t bytes, struct mapped_extent *x,
                  struct errmsg *e);

    void (*unmap)(struct mapped_extent *x);

    /* Unused extents can be unmapped at any time: no queued work reads them. */
    bool unmaps_at_once;
};

struct extent_cache {
    const struct extent_ops *ops;
    struct gpu *gpu;               /* for ops; NULL: host memory */
    struct mapped_extent *first;   /* most recently used first */
    struct mapped_extent *retired; /* orphans without pages, still mapped */
};

/* An empty cache of extents in host memory. */
void extents_init(struct extent_cache *cache);
void extents_deinit(struct extent_cache *cache);

/**
 * extents_get() - the mapping of extent @id, imported if it is not mapped; counts one page in it
 *
 * Return: 0; -ENOTCONN, -EPROTO, -EMFILE, -ENOMEM ...
 */
int extents_get(struct extent_cache *cache, struct connection *c, uint64_t id, struct mapped_extent **ret,
                struct errmsg *e);

/* Counts one page less in @x. */
void extents_put(struct extent_cache *cache, struct mapped_extent *x);

/*
 * Makes orphans of all extents: the pool is gone. An orphan stays mapped while pages in it are used, and
 * extents_get() does not return it.
 */
void extents_orphan(struct extent_cache *cache);

/* The daemon reclaims extent @id: it is unmapped as soon as no page in it is held. */
void extents_unwant(struct extent_cache *cache, uint64_t id);

/* Whether extents_trim() would unmap anything. */
bool extents_have_unused(const struct extent_cache *cache);

/* Unmaps unused extents, all but a few. On a GPU the caller has waited for the stream; on
 * the host extents_put() calls it. */
void extents_trim(struct extent_cache *cache);
