/*
 * The two queues of S3-FIFO (Yang et al., SOSP 2023) over the unheld pages of one group. A page enters the
 * small queue when its last hold ends, or the main queue if it was there before or its ghost is remembered.
 * At the tail of the small queue, a page that was found at least EVICT_PROMOTE_USES times moves to the main
 * queue; any other page is the victim. At the tail of the main queue, a page with uses left loses one use and
 * moves to the head; a page without is the victim.
 *
 * Held pages are in no queue, so the search for a victim never visits them. It passes over pinned pages.
 *
 * Half of the pages are in the small queue, not a tenth as in the paper: most prompts come back, and later
 * than a tenth of a pool lasts (PERFORMANCE.md, "Eviction").
 *
 * The clock counts pages that enter a queue. It wraps around, so times are compared by their difference.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/pool.h"

enum { EVICT_USES_MAX = 3, EVICT_SMALL_PERCENT = 50, EVICT_PROMOTE_USES = 1 };

void evict_queue_enter(struct pool *p, const struct page_handle *h); /* its last hold ended */
void evict_queue_leave(struct pool *p, const struct page_handle *h); /* held again, or dropped */

/* Whether time @a is before time @b. */
static inline bool evict_queue_is_before(uint32_t a, uint32_t b)
{
    return (int32_t) (a - b) < 0;
}

static inline void evict_queue_note_use(struct slot *slot)
{
    slot->was_leased = 1;
    if (slot->uses < EVICT_USES_MAX)
        slot->uses++;
}

/*
 * The next page of @g to drop, after promotions; it stays in its queue. False: every page is held or pinned.
 */
bool evict_queue_victim(struct pool *p, struct group *g, struct page_handle *ret);
