/*
 * Eviction: drops unheld pages to make room. evict_queue.h chooses the victim of a group. Among the victims
 * of a tenant's groups, pages of a table that is being retired go first, then the oldest page.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct group;
struct pool_extent;
struct store;
struct tenant;

/* Drops the oldest victim of @t. False: every page is held. */
bool evict_oldest(struct store *st, struct tenant *t);

/* Drops pages of @t, oldest victim first, until the quota has room for @bytes. False: the rest is held. */
bool evict_for_quota(struct store *st, struct tenant *t, size_t bytes);

/**
 * evict_for_group() - make room for one page of @g by dropping pages of its tenant; no extent is freed
 *
 * Drops a page of @g if it is the tenant's oldest victim; else a whole span of the group that the oldest
 * victim is in, so that a new table takes over from an old one; else a page of @g. False: nothing can be
 * dropped.
 */
bool evict_for_group(struct store *st, struct group *g);

/* Ends the pins in @x, and drops all unheld pages of it. */
void evict_extent(struct store *st, struct pool_extent *x);

/*
 * For an operator: ends the pins of @t and drops up to @n_max of its unheld pages, of one table or (NULL) of
 * all. Return: how many.
 */
uint32_t evict_some(struct store *st, struct tenant *t, const uint8_t *table_digest, uint32_t n_max,
                    uint64_t *ret_bytes);
