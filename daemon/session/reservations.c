/* See reservations.h. */
#include "daemon/session/reservations.h"

#include "daemon/session/session_types.h"
#include "daemon/store/device.h"

void reservations_add(struct session *x, uint32_t number)
{
    struct pool *p = &store_of(x->tenant)->pool;
    struct slot *slot = pool_slot(p, number);

    slot->prev = SLOT_NONE;
    slot->next = x->reservations;
    if (x->reservations != SLOT_NONE)
        pool_slot(p, x->reservations)->prev = number;
    x->reservations = number;
    x->n_reservations++;
}

void reservations_take(struct session *x, uint32_t number)
{
    struct pool *p = &store_of(x->tenant)->pool;
    struct slot *slot = pool_slot(p, number);

    if (slot->prev != SLOT_NONE)
        pool_slot(p, slot->prev)->next = slot->next;
    else
        x->reservations = slot->next;
    if (slot->next != SLOT_NONE)
        pool_slot(p, slot->next)->prev = slot->prev;
    slot->next = slot->prev = SLOT_NONE;
    x->n_reservations--;
}

void reservations_discard_all(struct session *x)
{
    while (x->reservations != SLOT_NONE) {
        uint32_t slot = x->reservations;

        reservations_take(x, slot);
        store_discard(store_of(x->tenant), slot);
    }
}

void reservations_discard_earlier(struct session *x)
{
    struct store *st = store_of(x->tenant);

    for (uint32_t slot = x->reservations, next; slot != SLOT_NONE; slot = next) {
        next = pool_slot(&st->pool, slot)->next;
        if (pool_slot(&st->pool, slot)->generation > x->earlier_generation)
            continue;
        reservations_take(x, slot);
        store_discard(st, slot);
    }
}
