/*
 * The two queues of S3-FIFO (Yang et al., SOSP 2023) over the unheld pages of one group. A page enters the
 * small queue when its last hold ends, or the main queue if it was there before or its ghost is remembered.
 * At the tail of the small queue, a page that was found at least EVICT_PROMOTE_USES times moves to the main
 * queue; any other page is the victim. At the tail of the main queue, a page with uses left loses one use and
 * moves to the head; a page without is the victim.
 *
 * Held pages are in no queue, so the search for a victim never visits them.
 */
#pragma once

#include <stdint.h>

#include "daemon/store/pool.h"

enum { EVICT_USES_MAX = 3, EVICT_SMALL_PERCENT = 10, EVICT_PROMOTE_USES = 2 };

void evict_queue_enter(struct pool *p, uint32_t slot); /* its last hold ended */
void evict_queue_leave(struct pool *p, uint32_t slot); /* held again, or dropped */

static inline void evict_queue_note_use(struct slot *slot)
{
    if (slot->uses < EVICT_USES_MAX)
        slot->uses++;
}

/* The next page of @g to drop, after promotions; it stays in its queue. SLOT_NONE: every page is held. */
uint32_t evict_queue_victim(struct pool *p, struct group *g);
