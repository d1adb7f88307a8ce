/* The slots that a session has reserved: a list through slot.next and slot.prev. */
#pragma once

#include <stdint.h>

struct session;

void reservations_add(struct session *x, uint32_t slot);
void reservations_take(struct session *x,
                       uint32_t slot); /* takes it out of the list; the slot stays RESERVED */

/* Gives all slots back to the store. */
void reservations_discard_all(struct session *x);

/*
 * The same for slots that were reserved over an earlier connection: the client declared that it
 * does not write there.
 */
void reservations_discard_earlier(struct session *x);
