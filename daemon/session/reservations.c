/* See reservations.h. */
#include "daemon/session/reservations.h"

#include "daemon/session/session_types.h"
#include "daemon/store/device.h"

/* The slot with @number; NULL if it is SLOT_NONE. */
static struct slot *reservations_slot(const struct session *x, uint32_t number)
{
    return pool_slot(&store_of(x->tenant)->pool, number);
}

void reservations_add(struct session *x, const struct page_handle *h)
{
    struct slot *slot = h->slot, *first = reservations_slot(x, x->reservations);

    slot->prev = SLOT_NONE;
    slot->next = x->reservations;
    if (first)
        first->prev = h->number;
    x->reservations = h->number;
    x->n_reservations++;
}

void reservations_take(struct session *x, const struct page_handle *h)
{
    struct slot *slot = h->slot;
    struct slot *prev = reservations_slot(x, slot->prev), *next = reservations_slot(x, slot->next);

    if (prev)
        prev->next = slot->next;
    else
        x->reservations = slot->next;
    if (next)
        next->prev = slot->prev;
    slot->next = slot->prev = SLOT_NONE;
    x->n_reservations--;
}

void reservations_discard_all(struct session *x)
{
    struct store *st = store_of(x->tenant);

    while (x->reservations != SLOT_NONE) {
        struct page_handle h = pool_handle(&st->pool, x->reservations);

        reservations_take(x, &h);
        store_discard(st, &h);
    }
}

void reservations_discard_earlier(struct session *x)
{
    struct store *st = store_of(x->tenant);
    uint32_t number = x->reservations;

    while (number != SLOT_NONE) {
        struct page_handle h = pool_handle(&st->pool, number);

        number = h.slot->next;
        if (h.slot->generation <= x->earlier_generation) {
            reservations_take(x, &h);
            store_discard(st, &h);
        }
    }
}
