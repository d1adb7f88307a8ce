/* Spans: runs of units of an extent, and the slots in them. For pool.c; other files use pool.h. */
#pragma once

#include "daemon/store/pool_types.h"

void span_list_append(struct span_list *l, struct span *s);
void span_list_remove(struct span_list *l, struct span *s);

/* Units of a span for pages of @g. A page fits an extent. */
uint32_t span_units(const struct pool *p, const struct group *g);

/* Return: 0; -ENOSPC: no such run of free units in @x; -ENOMEM. */
int span_new(struct pool *p, struct pool_extent *x, struct group *g, uint32_t n_units,
             const struct span_owner *owner, struct span **ret);

/**
 * span_adopt() - take over a span of an earlier process, as its head at @unit describes it
 * @g: the group that the head describes, with the same sizes
 *
 * COMMITTED slots stay, unheld; all others become FREE. On a GPU, RESERVED slots stay RESERVED, and COPYING
 * ones become RESERVED without a session, in no list.
 *
 * Return: 0; -ENOENT: all slots are FREE, so the span was freed; -EBADMSG: the head is invalid; -ENOMEM.
 */
int span_adopt(struct pool *p, struct pool_extent *x, struct group *g, uint32_t unit, struct span **ret);

/* @s has a free slot. *ret: that slot, RESERVED with a new generation. */
void span_slot_take(struct pool *p, struct span *s, struct page_handle *ret);

/* Moves the span to the list of its group that matches its free slots. */
void span_file(struct span *s);

/* Any other state -> FREE. The slot is not held and in no list. Frees the span with its last used slot. */
void span_slot_give(struct pool *p, const struct page_handle *h);

/* Calls @visit for each slot of @g that is not FREE. @visit gives back all of these slots, or none. */
void span_visit_slots(struct group *g, void (*visit)(void *ctx, const struct page_handle *h), void *ctx);
