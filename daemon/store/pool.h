/*
 * The pool: extents, cut into spans, cut into slots. It handles sizes and owners, not messages, keys or
 * policies.
 *
 *     extent  one memory object of one tenant, added on demand, destroyed when empty
 *     span    a run of units of an extent; while one of its slots is in use, all belong to one group
 *     group   the pages of one (tenant, table, shard, class), all of one size
 *     slot    room for one page; its number is span << POOL_SLOT_BITS | index
 *
 * One thread uses the pool. pool_slot() checks slot numbers that clients send: it returns NULL if the slot
 * does not exist.
 */
#pragma once

#include "daemon/store/pool_types.h"

/* @serials: borrowed. Return: 0; -ENOMEM. */
int pool_init(struct pool *p, struct pool_serials *serials, uint64_t pool_bytes, uint64_t extent_bytes,
              uint64_t unit_bytes, struct errmsg *e);
void pool_deinit(struct pool *p);

void pool_group_init(struct group *g, struct tenant *tenant, struct space *space, unsigned page_class,
                     size_t slot_bytes, size_t page_bytes);

/**
 * pool_slot_take() - a slot for a page of @g, from a span of the group, else a new span, else a new extent
 *
 * The slot is RESERVED, has a new generation and counts as busy. Evicts nothing. A slot fits an extent.
 *
 * Return: 0; -ENOSPC: the pool is full; errno of the source.
 */
int pool_slot_take(struct pool *p, struct group *g, const struct span_owner *owner, struct page_handle *ret,
                   struct errmsg *e);

/* Any other state -> FREE. The slot is not held and in no list. Frees the span with its last used slot. */
void pool_slot_give(struct pool *p, const struct page_handle *h);

/* NULL if no span has such a slot or it was never used. */
struct slot *pool_slot(const struct pool *p, uint32_t slot);

/* Checks and resolves a number, which may come from a client. False: pool_slot() is NULL. */
bool pool_resolve(const struct pool *p, uint32_t number, struct page_handle *ret);
/* Resolves a number of the daemon's own, of a slot that exists: asserted. */
struct page_handle pool_handle(const struct pool *p, uint32_t number);

uint64_t pool_slot_offset(const struct pool *p, const struct page_handle *h); /* in its extent */
uint8_t *pool_slot_data(const struct pool *p, const struct page_handle *h);   /* on the host: asserted */
void pool_slot_set_busy(const struct page_handle *h, bool busy); /* counts; called on changes only */

#define POOL_MEMORY_NONE ((struct pool_memory){.gpu_fd = -1, .records.fd = -1})

/* Frees what no pool took. */
void pool_memory_deinit(struct pool_memory *m);

/*
 * Adds an extent of an earlier process, with all units free; span_adopt() follows. Takes @memory (NULL on a
 * GPU), @gpu_fd (-1 on the host) and @records over on success.
 */
int pool_extent_adopt(struct pool *p, struct tenant *tenant, uint64_t id, struct extent *memory, int gpu_fd,
                      struct slot_records *records, struct pool_extent **ret, struct errmsg *e);

struct pool_extent *pool_extent_find(const struct pool *p, uint64_t id);
bool pool_can_grow(const struct pool *p);
bool pool_extent_is_idle(const struct pool *p, const struct pool_extent *x); /* no slot is RESERVED or held */
void pool_extent_set_reclaimed(struct pool *p, struct pool_extent *x, bool reclaimed);
void pool_extent_retire(struct pool *p, struct pool_extent *x);
void pool_extent_destroy(struct pool *p, struct pool_extent *x); /* has no spans */

/* Slots that @g could get without evicting: in its spans, in free units of its tenant, in new extents. */
uint64_t pool_group_room(const struct pool *p, const struct group *g);

/* Bytes of spans that hold no page: the remainder at their ends, and their free slots. */
uint64_t pool_waste_bytes(const struct pool *p);

/* Checks all records and lists of the pool. Tests call it after every step. False: @e has the reason. */
bool pool_is_valid(const struct pool *p, struct errmsg *e);
