/* The slots that a session has reserved: a list through slot.next and slot.prev. */
#pragma once

struct page_handle;
struct session;

void reservations_add(struct session *x, const struct page_handle *h);
/* Takes it out of the list; the slot stays RESERVED. */
void reservations_take(struct session *x, const struct page_handle *h);

/* Gives all slots back to the store. */
void reservations_discard_all(struct session *x);

/*
 * The same for slots that were reserved over an earlier connection: the client declared that it
 * does not write there.
 */
void reservations_discard_earlier(struct session *x);
