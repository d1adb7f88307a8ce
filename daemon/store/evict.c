/* See evict.h. */
#include "daemon/store/evict.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "daemon/store/evict_queue.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

/* Pages of a table that is being retired go first, then the oldest page: generations grow with time. */
static bool evict_goes_before(const struct pool *p, uint32_t a, uint32_t b)
{
    bool a_first = pool_slot_span(p, a)->group->space->leaves_first;
    bool b_first = pool_slot_span(p, b)->group->space->leaves_first;

    return a_first != b_first ? a_first : pool_slot(p, a)->generation < pool_slot(p, b)->generation;
}

/* The victim to evict first among those of all groups of the tenant. */
static uint32_t evict_oldest_victim(struct pool *p, const struct tenant *t)
{
    uint32_t best = SLOT_NONE;

    for (struct group *g = t->groups; g; g = g->next) {
        uint32_t v = evict_queue_victim(p, g);

        if (v != SLOT_NONE && (best == SLOT_NONE || evict_goes_before(p, v, best)))
            best = v;
    }
    return best;
}

static void evict(struct store *st, struct tenant *t, uint32_t number)
{
    t->evictions++;
    pool_slot_span(&st->pool, number)->group->space->n_evictions++;
    store_drop(st, number, GHOST_EVICTED);
}

bool evict_for_quota(struct store *st, struct tenant *t, size_t bytes)
{
    while (tenant_used_bytes(t) > t->quota_bytes || tenant_room_bytes(t) < bytes) {
        uint32_t v = evict_oldest_victim(&st->pool, t);

        if (v == SLOT_NONE)
            return false;

        evict(st, t, v);
    }
    return true;
}

/* Drops the unheld pages of a span; without busy slots this frees the span. */
static void evict_empty_span(struct store *st, struct tenant *t, struct span *s)
{
    uint32_t first = s->number << POOL_SLOT_BITS, n = s->n_fresh_from, left = s->n_used - s->n_busy;

    for (uint32_t i = 0; i < n && left > 0; i++) { /* the span is freed with its last page */
        const struct slot *slot = pool_slot(&st->pool, first | i);

        if (slot->state != SLOT_COMMITTED || slot->holds > 0)
            continue;
        left--;
        evict(st, t, first | i);
    }
}

static struct span *evict_idle_span(const struct group *g)
{
    for (struct span *s = g->partial.head; s; s = s->next) /* partial spans first: fewer pages are lost */
        if (s->n_busy == 0)
            return s;
    for (struct span *s = g->full.head; s; s = s->next)
        if (s->n_busy == 0)
            return s;
    return NULL;
}

void evict_extent(struct store *st, struct pool_extent *x)
{
    for (uint32_t i = 0; i < x->n_units; i++) {
        uint32_t span = x->span_of_unit[i];

        if (span != UINT32_MAX)
            evict_empty_span(st, x->tenant, st->pool.spans[span]);
    }
}

uint32_t evict_some(struct store *st, struct tenant *t, const uint8_t *table_digest, uint32_t n_max,
                    uint64_t *ret_bytes)
{
    uint32_t n = 0;
    uint64_t bytes = 0;

    for (struct group *g = t->groups; g && n < n_max; g = g->next) {
        if (table_digest && memcmp(g->space->table_digest, table_digest, DIGEST_BYTES) != 0)
            continue;

        for (uint32_t v; n < n_max && (v = evict_queue_victim(&st->pool, g)) != SLOT_NONE; n++) {
            evict(st, t, v);
            bytes += g->slot_bytes;
        }
    }

    *ret_bytes = bytes;
    return n;
}

bool evict_for_group(struct store *st, struct group *g)
{
    struct pool *p = &st->pool;
    uint32_t v = evict_oldest_victim(p, g->tenant);

    if (v != SLOT_NONE) {
        struct group *loser = pool_slot_span(p, v)->group;
        struct span *s = loser == g ? NULL : evict_idle_span(loser);

        if (s) {
            evict_empty_span(st, g->tenant, s);
            return true;
        }

        v = evict_queue_victim(p, g);
    }

    if (v == SLOT_NONE)
        return false;

    evict(st, g->tenant, v);
    return true;
}
