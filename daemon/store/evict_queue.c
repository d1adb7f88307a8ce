/* See evict_queue.h. */
#include "daemon/store/evict_queue.h"

#include <assert.h>

static struct slot_queue *evict_queue_select(struct group *g, uint8_t id)
{
    return id == SLOT_QUEUE_MAIN ? &g->main_queue : &g->small_queue;
}

static void evict_queue_push(struct pool *p, struct group *g, uint32_t number, uint8_t id)
{
    struct slot_queue *q = evict_queue_select(g, id);
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

static void evict_queue_pull(struct pool *p, struct group *g, uint32_t number)
{
    struct slot *slot = pool_slot(p, number);
    struct slot_queue *q = evict_queue_select(g, slot->queue);

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

void evict_queue_enter(struct pool *p, uint32_t number)
{
    struct slot *slot = pool_slot(p, number);
    struct span *s = pool_slot_span(p, number);

    slot->entered = s->entered = p->n_entered++;
    evict_queue_push(p, s->group, number, slot->was_main ? SLOT_QUEUE_MAIN : SLOT_QUEUE_SMALL);
}

void evict_queue_leave(struct pool *p, uint32_t number)
{
    evict_queue_pull(p, pool_slot_span(p, number)->group, number);
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
uint32_t evict_queue_victim(struct pool *p, struct group *g)
{
    for (;;) {
        uint64_t n = (uint64_t) g->small_queue.n + g->main_queue.n;
        uint32_t of_small = evict_queue_oldest(p, &g->small_queue);
        uint32_t of_main = evict_queue_oldest(p, &g->main_queue);
        bool from_small =
            of_small != SLOT_NONE &&
            (of_main == SLOT_NONE || (uint64_t) g->small_queue.n * 100 >= n * EVICT_SMALL_PERCENT);
        uint32_t number = from_small ? of_small : of_main;
        struct slot *slot;

        if (number == SLOT_NONE)
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

        evict_queue_pull(p, g, number);
        evict_queue_push(p, g, number, SLOT_QUEUE_MAIN);
    }
}
