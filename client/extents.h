/*
 * The daemon's extents that this client has mapped, read-only. Imported when a page in them is first granted, kept
 * while pages of them are held, and a few beyond that: a text that is dropped and found again maps nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct connection;
struct cuda_extent;
struct errmsg;
struct extent;

#define EXTENTS_IDLE_MAX 4

struct mapped_extent {
    struct mapped_extent *next;  /* NULL for an orphan: only its pages know it */
    bool orphan;                 /* of a pool that is gone: nobody writes it any more, its number means nothing */
    uint64_t id;
    size_t n_pages;              /* held pages that lie in it */
    struct extent *extent;
    struct cuda_extent *device;  /* instead of it, on a GPU */
};

struct extent_cache {
    struct mapped_extent *first; /* most recently used first */
};

/**
 * extents_get() - the mapping of extent @id, imported if need be; counts one page in it
 * Return: 0; -ENOTCONN, -EPROTO, -EMFILE, -ENOMEM …
 */
int extents_get(struct extent_cache *cache, struct connection *c, uint64_t id, struct mapped_extent **ret,
                struct errmsg *e);

/* One page less. */
void extents_put(struct extent_cache *cache, struct mapped_extent *x);

/* The pool is gone: mappings stay while pages in them are used, and are not found any more. */
void extents_orphan(struct extent_cache *cache);

void extents_deinit(struct extent_cache *cache);
