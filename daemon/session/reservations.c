/* See reservations.h. */
#include "daemon/session/reservations.h"

#include "daemon/session/session_types.h"
#include "daemon/store/device.h"

/* The slot with @number; NULL if it is SLOT_NONE. */
static struct slot *reservations_slot(const struct session *x, uint32_t number)
{
    struct page_handle h;

    return number != SLOT_NONE && store_resolve(store_of(x->tenant), number, &h) ? h.slot : NULL;
}

void reservations_add(struct session *x, uint32_t number)
{
    struct slot *slot = reservations_slot(x, number), *first = reservations_slot(x, x->reservations);

    slot->prev = SLOT_NONE;
    slot->next = x->reservations;
    if (first)
        first->prev = number;
    x->reservations = number;
    x->n_reservations++;
}

void reservations_take(struct session *x, uint32_t number)
{
    struct slot *slot = reservations_slot(x, number);
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
    while (x->reservations != SLOT_NONE) {
        uint32_t slot = x->reservations;

        reservations_take(x, slot);
        store_discard(store_of(x->tenant), slot);
    }
}

void reservations_discard_earlier(struct session *x)
{
    uint32_t number = x->reservations;

    while (number != SLOT_NONE) {
        const struct slot *slot = reservations_slot(x, number);
        uint32_t next = slot->next;

        if (slot->generation <= x->earlier_generation) {
            reservations_take(x, number);
            store_discard(store_of(x->tenant), number);
        }

        number = next;
    }
}
