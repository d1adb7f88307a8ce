/* See evict.h. */
#include "daemon/store/evict.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "daemon/store/evict_queue.h"
#include "daemon/store/kept.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

/* Pages of a table that is being retired go first, then the page that has been in its queue for longest. */
static bool evict_goes_before(const struct pool *p, uint32_t a, uint32_t b)
{
    bool a_first = pool_slot_span(p, a)->group->space->leaves_first;
    bool b_first = pool_slot_span(p, b)->group->space->leaves_first;

    if (a_first != b_first)
        return a_first;
    return evict_queue_is_before(pool_slot(p, a)->entered, pool_slot(p, b)->entered);
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
    t->counters.evictions++;
    st->n_evicted++;
    st->n_lost += !pool_slot(&st->pool, number)->is_on_disk;
    pool_slot_span(&st->pool, number)->group->space->n_evictions++;
    store_drop(st, number, GHOST_EVICTED);
}

bool evict_oldest(struct store *st, struct tenant *t)
{
    uint32_t v = evict_oldest_victim(&st->pool, t);

    if (v == SLOT_NONE)
        return false;

    evict(st, t, v);
    return true;
}

bool evict_for_quota(struct store *st, struct tenant *t, size_t bytes)
{
    while (tenant_used_bytes(t) > t->quota_bytes || tenant_room_bytes(t) < bytes)
        if (!evict_oldest(st, t))
            return false;
    return true;
}

/* Drops the unheld pages of a span; without busy slots this frees the span. */
static void evict_empty_span(struct store *st, struct tenant *t, struct span *s)
{
    uint32_t first = s->number << POOL_SLOT_BITS, n = s->n_fresh_from, left = s->n_used - s->n_busy;

    for (uint32_t i = 0; i < n && left > 0; i++) { /* the span is freed with its last page */
        const struct slot *slot = pool_slot(&st->pool, first | i);

        if (slot->state != SLOT_COMMITTED || slot->holds > 0 || slot->pinned)
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
    kept_end_extent(st, x);
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

    kept_end_tenant(st, t, table_digest);
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

/*
 * Whether a whole span may go so that @own, a group's own victim, stays. Its pages are of a table that is
 * being retired, or all of them came to their queue before @own: so a new table replaces an old one, and
 * groups that are all in use keep their sizes.
 */
static bool evict_span_goes_before(const struct pool *p, const struct span *s, uint32_t own)
{
    return s->group->space->leaves_first || own == SLOT_NONE ||
           evict_queue_is_before(s->entered, pool_slot(p, own)->entered);
}

/*
 * The span of @g to give up for a group whose victim is @own: a partial one if possible, since fewer pages
 * are lost, else that of the victim @v. NULL: none.
 */
static struct span *evict_span_of(struct pool *p, const struct group *g, uint32_t v, uint32_t own)
{
    struct span *s = evict_idle_span(g);

    if (s && evict_span_goes_before(p, s, own))
        return s;

    s = pool_slot_span(p, v);
    return s->n_busy == 0 && evict_span_goes_before(p, s, own) ? s : NULL;
}

/* A span of another group whose pages can all be evicted, for a group whose victim is @own. NULL: none. */
static struct span *evict_find_span(struct pool *p, const struct group *for_group, uint32_t own)
{
    uint32_t best = SLOT_NONE;
    struct span *ret = NULL;

    for (struct group *g = for_group->tenant->groups; g; g = g->next) {
        uint32_t v = g == for_group ? SLOT_NONE : evict_queue_victim(p, g);
        struct span *s;

        if (v == SLOT_NONE || (best != SLOT_NONE && !evict_goes_before(p, v, best)))
            continue;

        s = evict_span_of(p, g, v, own);
        if (s) {
            best = v;
            ret = s;
        }
    }
    return ret;
}

bool evict_for_group(struct store *st, struct group *g)
{
    uint32_t own = evict_queue_victim(&st->pool, g);
    struct span *s = evict_find_span(&st->pool, g, own);

    if (s) {
        evict_empty_span(st, g->tenant, s);
        return true;
    }
    if (own == SLOT_NONE)
        return false;

    evict(st, g->tenant, own);
    return true;
}
