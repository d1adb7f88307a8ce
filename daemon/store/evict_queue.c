/* See evict_queue.h. */
#include "daemon/store/evict_queue.h"

#include <assert.h>

static struct slot_queue *evict_queue_select(struct group *g, uint8_t id)
{
    return id == SLOT_QUEUE_MAIN ? &g->main_queue : &g->small_queue;
}

static void evict_queue_push(struct pool *p, const struct page_handle *h, uint8_t id)
{
    struct slot_queue *q = evict_queue_select(h->group, id);
    struct slot *slot = h->slot;

    assert(slot->queue == SLOT_QUEUE_NONE);
    slot->queue = id;
    slot->prev = SLOT_NONE;
    slot->next = q->head;
    if (q->head != SLOT_NONE)
        pool_slot(p, q->head)->prev = h->number;
    else
        q->tail = h->number;
    q->head = h->number;
    q->n++;
}

static void evict_queue_pull(struct pool *p, const struct page_handle *h)
{
    struct slot *slot = h->slot;
    struct slot_queue *q = evict_queue_select(h->group, slot->queue);

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

void evict_queue_enter(struct pool *p, const struct page_handle *h)
{
    h->slot->entered = h->span->entered = p->n_entered++;
    evict_queue_push(p, h, h->slot->was_main ? SLOT_QUEUE_MAIN : SLOT_QUEUE_SMALL);
}

void evict_queue_leave(struct pool *p, const struct page_handle *h)
{
    evict_queue_pull(p, h);
}

/* The oldest page of the queue that is not pinned. Few pages are pinned at a time. */
static uint32_t evict_queue_oldest(const struct pool *p, const struct slot_queue *q)
{
    uint32_t number = q->tail;

    while (number != SLOT_NONE && pool_slot(p, number)->pinned)
        number = pool_slot(p, number)->prev;
    return number;
}

/* Terminates: each pass returns, moves a page from small to main for good, or removes one use. */
bool evict_queue_victim(struct pool *p, struct group *g, struct page_handle *ret)
{
    for (;;) {
        uint64_t n = (uint64_t) g->small_queue.n + g->main_queue.n;
        uint32_t of_small = evict_queue_oldest(p, &g->small_queue);
        uint32_t of_main = evict_queue_oldest(p, &g->main_queue);
        bool from_small =
            of_small != SLOT_NONE &&
            (of_main == SLOT_NONE || (uint64_t) g->small_queue.n * 100 >= n * EVICT_SMALL_PERCENT);
        struct page_handle h;

        if (!pool_resolve(p, from_small ? of_small : of_main, &h))
            return false;

        if (from_small && h.slot->uses >= EVICT_PROMOTE_USES) {
            h.slot->uses = 0;
            h.slot->was_main = 1;
        } else if (!from_small && h.slot->uses > 0) {
            h.slot->uses--;
        } else {
            *ret = h;
            return true;
        }

        evict_queue_pull(p, &h);
        evict_queue_push(p, &h, SLOT_QUEUE_MAIN);
    }
}
