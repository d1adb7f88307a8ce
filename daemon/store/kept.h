/*
 * Kept pages: an operator pinned them until a time (kvcobra pin). Such a page has one hold of the daemon's
 * own, so it is in no eviction queue, and no search for a victim meets it. The hold ends
 *
 *     at its time, and when an operator unpins it
 *     when an operator flushes or evicts it
 *     when its table is retired, or its drain time is over
 *     when its extent is reclaimed for its lender or retired
 *     when its checksum is found to be wrong
 *     at a restart, which counts holds anew from the journal
 *
 * A tenant's kept pages are a list in the order in which they were pinned. It is short enough to be searched:
 * KEPT_PAGES_MAX.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct errmsg;
struct page_handle;
struct pool_extent;
struct space;
struct store;
struct tenant;

enum { KEPT_PAGES_MAX = 16384 }; /* of a tenant: 256 KiB of list, a million tokens of one shard */

struct kept_page {
    uint32_t slot;
    uint64_t until_ms;
};

struct kept_pages {         /* of a tenant; zeros at first */
    struct kept_page *list; /* [n_max] */
    uint32_t n, n_max;
    uint64_t bytes;   /* of their slots */
    uint64_t next_ms; /* no page ends before */
};

/* What @t may have pinned: half of its quota, at most half of the pool. */
uint64_t kept_limit_bytes(const struct store *st, const struct tenant *t);

/**
 * kept_begin() - keep a COMMITTED page until @until_ms, also one that is kept already
 *
 * Return: 0; -EDQUOT: its tenant would have too much pinned, or all tenants more than half of the pool;
 * -ENOMEM; each with a sentence.
 */
int kept_begin(struct store *st, const struct page_handle *h, uint64_t until_ms, struct errmsg *e);

/* How long the page stays kept. 0: it is not kept. */
uint64_t kept_left_ms(const struct page_handle *h, uint64_t now_ms);

/* Ends the daemon's hold on a page, if it is kept. The page may be dropped, if its extent is closed. */
void kept_end(struct store *st, const struct page_handle *h);
/* The same for the pages of @t with a table, or (NULL) all; of @space in all tenants; and of @x. */
void kept_end_tenant(struct store *st, struct tenant *t, const uint8_t *table_digest);
void kept_end_space(struct store *st, const struct space *space);
void kept_end_extent(struct store *st, const struct pool_extent *x);

/* At each tick: ends the pages whose time has come. Return: whether any page is kept. */
bool kept_tick(struct store *st, uint64_t now_ms);

/* No page is kept. */
static inline void kept_deinit(struct kept_pages *k)
{
    free(k->list);
    *k = (struct kept_pages){.list = NULL};
}
