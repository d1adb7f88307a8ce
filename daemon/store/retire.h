/*
 * Retired extents: memory that takes no new page, because a process that this daemon cannot stop may still
 * write there, or because the client that allocated it is gone. Unheld pages are evicted at once, each other
 * page with its last hold; retire_tick() destroys an extent that holds no page.
 */
#pragma once

#include <stdint.h>

struct pool_extent;
struct store;

/* Retires an extent on a GPU, because a dead process may still write to it. */
void retire_extent(struct store *st, struct pool_extent *x);

/*
 * The client that allocated @x is gone: retires the extent and grants no page in it. Held pages count until
 * they are released. Reservations in it have ended.
 */
void retire_external(struct store *st, struct pool_extent *x);

/* Retires the extents of all slots that @session reserved; the caller retires those that it holds. */
void retire_reserved(struct store *st, uint32_t session);

/* At each tick: destroys retired extents without pages. */
void retire_tick(struct store *st);
