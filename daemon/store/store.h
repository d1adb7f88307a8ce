/*
 * The store: the states of a page, and all accounts. The pool below has the places of pages; the requests
 * above have the clients.
 *
 *     FREE --reserve--> RESERVED --publish--> COMMITTED, held --unhold--> COMMITTED, unheld --drop--> FREE
 *                          \--discard--> FREE                  \<--hold--/
 *
 * A reserved slot is COPYING while a thread fills it: then only the job that claimed the slot may publish,
 * unclaim or discard it.
 *
 * All calls take a page by its handle (pool_types.h): a number is resolved once, where it comes from.
 *
 * Space is charged when it is reserved (reserve.h). Only unheld pages are dropped; S3-FIFO chooses which
 * (evict_queue.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/ghost.h"
#include "daemon/store/pool.h"
#include "daemon/store/tenant.h"

struct errmsg;

struct store {
    struct pool pool;
    uint32_t place; /* the number of the device in the journal; PLACE_NONE: none yet */
    struct tenant *tenants;
    uint32_t n_tenants;
    uint32_t lendable_percent; /* of an unused guarantee that other tenants may borrow; see share.h */
    uint64_t n_damaged;        /* pages of an earlier process whose checksum is wrong */
    uint64_t n_evicted;
    uint64_t n_lost;    /* of them, those that no slower tier has */
    uint64_t n_flushed; /* pages that operators flushed: store_forget() */
};

/* RESERVED -> COPYING and back. The caller takes the slot out of its list, or adds it again. */
void store_claim(const struct page_handle *h);
void store_unclaim(const struct page_handle *h);

/* RESERVED or COPYING -> FREE. The caller took the slot out of its list. */
void store_discard(struct store *st, const struct page_handle *h);

/**
 * store_publish() - RESERVED or COPYING -> COMMITTED with one hold; the key becomes visible
 *
 * Return: 0; -ENOSPC: the index has no place for the key (tenant_index.h), and the slot is unchanged.
 */
int store_publish(struct store *st, const struct page_handle *h, const struct chunk_key *key,
                  uint32_t payload_crc32c, struct errmsg *e);

/*
 * Adds a COMMITTED page of an earlier process to index and accounts. store_adopt_holds() follows after its
 * holds were counted in the record. Return: 0; -EEXIST: the key has a page already; -ENOSPC: the index has no
 * place for the key. After a failure the slot is FREE.
 */
int store_adopt(struct store *st, const struct page_handle *h, struct errmsg *e);
void store_adopt_holds(struct store *st, const struct page_handle *h);

/* On a GPU: charges a slot that a session of an earlier process has RESERVED. */
void store_adopt_reserved(const struct page_handle *h);

/* Frees the slots that @session has RESERVED and that are in no list. */
void store_discard_reserved(struct store *st, uint32_t session);

/**
 * store_page_is_whole() - whether the page may be leased
 *
 * A page of this process is whole. A page of an earlier process is compared with its checksum once; a
 * damaged page is dropped as soon as no lease holds it. On a GPU the mover compares before this is called: a
 * page that is still unchecked may not be leased.
 */
bool store_page_is_whole(struct store *st, const struct page_handle *h);

/* Records the result of a comparison by a worker thread or the mover. */
void store_page_checked(struct store *st, const struct page_handle *h, bool whole);

/**
 * store_find_whole() - store_find() for a caller that will lease the page
 * @ret: PAGE_NONE: the key has no page
 *
 * Return: 0; -EAGAIN: the page was damaged over a restart and cannot be dropped before its leases end.
 */
int store_find_whole(struct store *st, const struct tenant *t, const struct chunk_key *key,
                     struct page_handle *ret, struct errmsg *e);

/* The tenant's page with @key. False: it has none. */
bool store_find(const struct store *st, const struct tenant *t, const struct chunk_key *key,
                struct page_handle *ret);

/* After a wait: the page that was in slot @number then. False: it left memory. */
bool store_find_again(const struct store *st, uint32_t number, uint64_t generation, struct page_handle *ret);

/* Counts the leases that name the page. */
void store_hold(struct store *st, const struct page_handle *h);
void store_unhold(struct store *st, const struct page_handle *h);

/*
 * A thread reads a page that is not in a closed extent; one pin at a time. The pin is no hold: the page stays
 * in its eviction queue, and the search for a victim passes over it.
 */
void store_pin(const struct page_handle *h);
void store_unpin(struct store *st, const struct page_handle *h); /* drops an unheld page of a closed extent */

/* Drops an unheld page: removes its key from the index, adds a ghost, frees the slot. */
void store_drop(struct store *st, const struct page_handle *h, enum ghost_reason reason);

/**
 * store_forget() - the page is not found by its key again, also after a restart
 *
 * An unheld page is dropped. One that is held or pinned gets a random key: it keeps its memory until its
 * holds end, and then leaves like any page.
 *
 * Return: 0; -ENOSPC: the index has no place for a random key, and the page keeps its own.
 */
int store_forget(struct store *st, const struct page_handle *h, struct errmsg *e);

/* Drops all pages of @space in every tenant, with their groups. None of them is held or reserved. */
void store_drop_space(struct store *st, struct space *space, enum ghost_reason reason);

/* Checks pool, queues and accounts against each other. For tests. */
bool store_is_valid(const struct store *st, struct errmsg *e);
