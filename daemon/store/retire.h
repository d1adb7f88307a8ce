/*
 * Retired extents: memory that takes no new page, because a process that this daemon cannot stop may still
 * write there, or because the client that allocated it is gone. Unheld pages are evicted at once, each other
 * page with its last hold; retire_tick() destroys an extent that holds no page.
 */
#pragma once

#include <stdint.h>

struct pool_extent;
struct store;

/* On a GPU: nothing new comes into the extent, its unheld pages go; retire_tick() destroys it when nothing is
 * left in it. */
void retire_extent(struct store *st, struct pool_extent *x);

/*
 * The lender of @x, a lent extent, is gone: retired, and no page in it is granted any more; those that are
 * held count until they are released. Reservations there have ended.
 */
void retire_external(struct store *st, struct pool_extent *x);

/* The same for the extents of all pages that @session reserved; the caller sees to those it holds. */
void retire_reserved(struct store *st, uint32_t session);

/* Once in a while: retired extents without pages are destroyed. */
void retire_tick(struct store *st);
