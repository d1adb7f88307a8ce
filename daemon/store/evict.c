/* S3-FIFO and the search for room; see evict.h. */
#include "daemon/store/evict.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "daemon/store/share.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

/* ---- queues ---- */

static struct slot_queue *evict_queue_of(struct group *g, uint8_t id)
{
    return id == SLOT_QUEUE_MAIN ? &g->main : &g->small;
}

static void evict_push(struct pool *p, struct group *g, uint32_t number, uint8_t id)
{
    struct slot_queue *q = evict_queue_of(g, id);
    struct slot *slot = pool_slot(p, number);

    assert(slot->queue == SLOT_QUEUE_NONE);
    slot->queue = id;
    slot->prev = SLOT_NONE;
    slot->next = q->head;
    if (q->head != SLOT_NONE)
        pool_slot(p, q->head)->prev = number;
    else
        q->tail = number;
    q->head = number;
    q->n++;
}

static void evict_pull(struct pool *p, struct group *g, uint32_t number)
{
    struct slot *slot = pool_slot(p, number);
    struct slot_queue *q = evict_queue_of(g, slot->queue);

    assert(slot->queue != SLOT_QUEUE_NONE);
    if (slot->prev != SLOT_NONE)
        pool_slot(p, slot->prev)->next = slot->next;
    else
        q->head = slot->next;
    if (slot->next != SLOT_NONE)
        pool_slot(p, slot->next)->prev = slot->prev;
    else
        q->tail = slot->prev;
    slot->queue = SLOT_QUEUE_NONE;
    slot->next = slot->prev = SLOT_NONE;
    q->n--;
}

void evict_enter(struct pool *p, uint32_t number)
{
    struct slot *slot = pool_slot(p, number);

    evict_push(p, pool_slot_span(p, number)->group, number,
               slot->was_main ? SLOT_QUEUE_MAIN : SLOT_QUEUE_SMALL);
}

void evict_leave(struct pool *p, uint32_t number)
{
    evict_pull(p, pool_slot_span(p, number)->group, number);
}

/* Each turn either returns, moves a page from small to main for good, or takes one use away: it ends. */
uint32_t evict_victim(struct pool *p, struct group *g)
{
    for (;;) {
        uint64_t n = (uint64_t) g->small.n + g->main.n;
        bool from_small =
            g->small.n > 0 && (g->main.n == 0 || (uint64_t) g->small.n * 100 >= n * EVICT_SMALL_PERCENT);
        uint32_t number = from_small ? g->small.tail : g->main.tail;
        struct slot *slot;

        if (n == 0)
            return SLOT_NONE;
        slot = pool_slot(p, number);
        if (from_small && slot->uses >= EVICT_PROMOTE_USES) {
            slot->uses = 0;
            slot->was_main = 1;
        } else if (!from_small && slot->uses > 0) {
            slot->uses--;
        } else {
            return number;
        }
        evict_pull(p, g, number);
        evict_push(p, g, number, SLOT_QUEUE_MAIN);
    }
}

/* ---- room ---- */

/* Pages of a table on the way out before all others; else the one written first: generations grow with time.
 */
static bool evict_goes_before(const struct pool *p, uint32_t a, uint32_t b)
{
    bool a_first = pool_slot_span(p, a)->group->space->leaves_first;
    bool b_first = pool_slot_span(p, b)->group->space->leaves_first;

    return a_first != b_first ? a_first : pool_slot(p, a)->generation < pool_slot(p, b)->generation;
}

/* Among the victims of the tenant's groups. */
static uint32_t evict_oldest_victim(struct pool *p, const struct tenant *t)
{
    uint32_t best = SLOT_NONE;

    for (struct group *g = t->groups; g; g = g->next) {
        uint32_t v = evict_victim(p, g);

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

/* Its unheld pages go; without busy slots, so does the span. */
static void evict_empty_span(struct store *st, struct tenant *t, struct span *s)
{
    uint32_t first = s->number << POOL_SLOT_BITS, n = s->n_fresh_from, left = s->n_used - s->n_busy;

    for (uint32_t i = 0; i < n && left > 0; i++) { /* the span may be gone with its last page */
        const struct slot *slot = pool_slot(&st->pool, first | i);

        if (slot->state != SLOT_COMMITTED || slot->holds > 0)
            continue;
        left--;
        evict(st, t, first | i);
    }
}

static struct span *evict_idle_span(const struct group *g)
{
    for (struct span *s = g->partial.head; s; s = s->next) /* fewest pages lost */
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
        for (uint32_t v; n < n_max && (v = evict_victim(&st->pool, g)) != SLOT_NONE; n++) {
            evict(st, t, v);
            bytes += g->slot_bytes;
        }
    }
    *ret_bytes = bytes;
    return n;
}

bool evict_for_space(struct store *st, struct group *g)
{
    return share_destroy_retired(st) || share_destroy_empty(st, g->tenant) ||
           share_take_extent(st, g->tenant) || evict_for_group(st, g);
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
        v = evict_victim(p, g);
    }
    if (v == SLOT_NONE)
        return false;
    evict(st, g->tenant, v);
    return true;
}
