/*
 * Retired extents: memory that takes no new page, because a process that this daemon cannot stop may still
 * write there. Unheld pages are evicted at once, each other page with its last hold; retire_tick() destroys
 * an extent that holds no page.
 */
#pragma once

#include <stdint.h>

struct pool_extent;
struct store;

/* Retires an extent on a GPU, because a dead process may still write to it. */
void retire_extent(struct store *st, struct pool_extent *x);

/* Retires the extents of all slots that @session reserved; the caller retires those that it holds. */
void retire_reserved(struct store *st, uint32_t session);

/* At each tick: destroys retired extents without pages. */
void retire_tick(struct store *st);
