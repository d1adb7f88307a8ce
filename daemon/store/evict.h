/*
 * Which page goes when there is no room: S3-FIFO (Yang et al., SOSP 2023) per group over unheld pages. A page
 * enters the small queue when its last hold ends, or the main queue if it was there before or its ghost is
 * remembered; at the small queue's end it is promoted if it was found at least twice meanwhile, else it goes;
 * the main queue gives each use another round.
 *
 * Held pages stand in no queue, so that looking for a victim never walks over them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/pool.h"

struct store;
struct tenant;

enum { EVICT_USES_MAX = 3, EVICT_SMALL_PERCENT = 10, EVICT_PROMOTE_USES = 2 };

void evict_queue_enter(struct pool *p, uint32_t slot); /* its last hold ended */
void evict_queue_leave(struct pool *p, uint32_t slot); /* held again, or dropped */

static inline void evict_queue_note_use(struct slot *slot)
{
    if (slot->uses < EVICT_USES_MAX)
        slot->uses++;
}

/* The next to go of @g, promotions done; SLOT_NONE if every page is held. It stays in its queue. */
uint32_t evict_queue_victim(struct pool *p, struct group *g);

/* Drops pages of @t, oldest victim first, until the quota has room for @bytes. False: only held ones are
 * left. */
bool evict_for_quota(struct store *st, struct tenant *t, size_t bytes);

/**
 * evict_for_group() - the same from what the tenant of @g has, its extents stay
 *
 * A page of @g if it is the tenant's oldest victim, else a whole span of the group that has it (so that a new
 * table takes over from an old one); a page of @g.
 */
bool evict_for_group(struct store *st, struct group *g);

/* Its unheld pages go. */
void evict_extent(struct store *st, struct pool_extent *x);

/* An operator's wish: up to @n_max unheld pages of @t go, of one table or (NULL) of all. Return: how many
 * went. */
uint32_t evict_some(struct store *st, struct tenant *t, const uint8_t *table_digest, uint32_t n_max,
                    uint64_t *ret_bytes);
