/*
 * Eviction: drops unheld pages to make room, first those that evict_queue.h names. Among the groups of a
 * tenant, pages of a table that is being retired go first, then the page that was written first.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct group;
struct pool_extent;
struct store;
struct tenant;

/* Drops pages of @t, oldest victim first, until the quota has room for @bytes. False: only held pages are
 * left. */
bool evict_for_quota(struct store *st, struct tenant *t, size_t bytes);

/**
 * evict_for_group() - make room for one page of @g among the pages of its tenant, whose extents stay
 *
 * Drops a page of @g if it is the tenant's oldest victim; else a whole span of the group that the oldest
 * victim is in, so that a new table takes over from an old one; else a page of @g. False: nothing can be
 * dropped.
 */
bool evict_for_group(struct store *st, struct group *g);

/* Drops all unheld pages of @x. */
void evict_extent(struct store *st, struct pool_extent *x);

/* For an operator: drops up to @n_max unheld pages of @t, of one table or (NULL) of all. Return: how many. */
uint32_t evict_some(struct store *st, struct tenant *t, const uint8_t *table_digest, uint32_t n_max,
                    uint64_t *ret_bytes);
