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
static bool evict_goes_before(const struct page_handle *a, const struct page_handle *b)
{
    bool a_first = a->group->space->leaves_first, b_first = b->group->space->leaves_first;

    if (a_first != b_first)
        return a_first;
    return evict_queue_is_before(a->slot->entered, b->slot->entered);
}

static void evict(struct store *st, const struct page_handle *h)
{
    h->group->tenant->counters.evictions++;
    st->n_evicted++;
    st->n_lost += !h->slot->is_on_disk;
    h->group->space->n_evictions++;
    store_drop(st, h, GHOST_EVICTED);
}

bool evict_oldest(struct store *st, struct tenant *t)
{
    struct page_handle best = PAGE_NONE, v;

    for (struct group *g = t->groups; g; g = g->next)
        if (evict_queue_victim(&st->pool, g, &v) && (!best.slot || evict_goes_before(&v, &best)))
            best = v;
    if (!best.slot)
        return false;

    evict(st, &best);
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
static void evict_empty_span(struct store *st, struct span *s)
{
    uint32_t first = s->number << POOL_SLOT_BITS, n = s->n_fresh_from, left = s->n_used - s->n_busy;

    for (uint32_t i = 0; i < n && left > 0; i++) { /* the span is freed with its last page */
        const struct page_handle h = pool_handle(&st->pool, first | i);

        if (h.slot->state != SLOT_COMMITTED || h.slot->holds > 0 || h.slot->pinned)
            continue;
        left--;
        evict(st, &h);
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
            evict_empty_span(st, st->pool.spans[span]);
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

        for (struct page_handle v; n < n_max && evict_queue_victim(&st->pool, g, &v); n++) {
            evict(st, &v);
            bytes += g->slot_bytes;
        }
    }

    *ret_bytes = bytes;
    return n;
}

/*
 * Whether a whole span may go so that @own stays: the victim of the group that needs room, or PAGE_NONE. Its
 * pages are of a table that is being retired, or all of them came to their queue before @own: so a new table
 * replaces an old one, and groups that are all in use keep their sizes.
 */
static bool evict_span_goes_before(const struct span *s, const struct page_handle *own)
{
    return s->group->space->leaves_first || !own->slot ||
           evict_queue_is_before(s->entered, own->slot->entered);
}

/*
 * The span to give up of the group of victim @v, for a group whose victim is @own: a partial one if possible,
 * since fewer pages are lost, else that of @v. NULL: none.
 */
static struct span *evict_span_of(const struct page_handle *v, const struct page_handle *own)
{
    struct span *s = evict_idle_span(v->group);

    if (s && evict_span_goes_before(s, own))
        return s;
    return v->span->n_busy == 0 && evict_span_goes_before(v->span, own) ? v->span : NULL;
}

/* A span of another group whose pages can all be evicted, for a group whose victim is @own. NULL: none. */
static struct span *evict_find_span(struct pool *p, const struct group *for_group,
                                    const struct page_handle *own)
{
    struct page_handle best = PAGE_NONE, v;
    struct span *ret = NULL;

    for (struct group *g = for_group->tenant->groups; g; g = g->next) {
        struct span *s;

        if (g == for_group || !evict_queue_victim(p, g, &v) || (best.slot && !evict_goes_before(&v, &best)))
            continue;

        s = evict_span_of(&v, own);
        if (s) {
            best = v;
            ret = s;
        }
    }
    return ret;
}

bool evict_for_group(struct store *st, struct group *g)
{
    struct page_handle own = PAGE_NONE;
    bool has_own = evict_queue_victim(&st->pool, g, &own);
    struct span *s = evict_find_span(&st->pool, g, &own);

    if (s) {
        evict_empty_span(st, s);
        return true;
    }
    if (has_own)
        evict(st, &own);
    return has_own;
}
