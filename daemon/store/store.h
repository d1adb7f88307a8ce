/*
 * The store: the life of a page, with every account kept. Above the pool (where), below the messages (who
 * asked).
 *
 *     FREE --reserve--> RESERVED --publish--> COMMITTED, held --unhold--> COMMITTED, unheld --drop--> FREE
 *                          \--discard--> FREE                  \<--hold--/
 *
 * While a thread fills it, a reserved slot is COPYING: only the job that claimed it may publish, give back or
 * discard it.
 *
 * Space is charged when it is reserved. Only unheld pages are dropped; S3-FIFO chooses which (evict.h).
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
    uint32_t lendable_percent; /* of an unused guarantee; see share.h */
    uint64_t n_damaged;        /* pages of an earlier process whose checksum is wrong */
};

/* A page resolved once: what its number leads to. Valid until the slot is given back. */
struct page_handle {
    uint32_t number;
    struct slot *slot;
    struct span *span;
    struct group *group;
};

/* False: no span has such a slot, or it was never used. Numbers of clients are checked by this. */
bool store_resolve(const struct store *st, uint32_t number, struct page_handle *ret);
uint64_t store_page_offset(const struct store *st, const struct page_handle *h); /* in its extent */
uint8_t *store_page_data(const struct store *st, const struct page_handle *h);   /* on the host: asserted */

/* RESERVED -> COPYING and back; the caller keeps the lists. */
void store_claim(struct store *st, uint32_t slot);
void store_unclaim(struct store *st, uint32_t slot);

/* RESERVED or COPYING -> FREE; the caller took it out of its list. */
void store_discard(struct store *st, uint32_t slot);

/**
 * store_publish() - RESERVED or COPYING -> COMMITTED with one hold; the key becomes visible
 * Return: 0; errno of a larger index: then the slot is what it was.
 */
int store_publish(struct store *st, uint32_t slot, const struct chunk_key *key, uint32_t payload_crc32c,
                  struct errmsg *e);

/* A page of an earlier process, COMMITTED; store_adopt_holds() follows once its holds are counted in the
 * record. Return: 0; -EEXIST: the key is there already, the slot was given back; errno of a larger index. */
int store_adopt(struct store *st, uint32_t slot, struct errmsg *e);
void store_adopt_holds(struct store *st, uint32_t slot);

/* On a GPU: a slot that a session of an earlier process has RESERVED still. */
void store_adopt_reserved(struct store *st, uint32_t slot);

/* Its reservations that stand in no list end. */
void store_discard_reserved(struct store *st, uint32_t session);

/**
 * store_page_is_whole() - whether the page may be leased
 *
 * Pages of this process are, unless the memory's lender is gone. One of an earlier process is compared with
 * its checksum once; if it is damaged it is dropped as soon as nobody holds it. On a GPU somebody else
 * compares, before: one that is unchecked still is not whole.
 */
bool store_page_is_whole(struct store *st, uint32_t slot);

/* The page is of an earlier process and was not compared with its checksum yet. */
bool store_page_is_unchecked(const struct store *st, uint32_t slot);
/* It was compared by somebody else: what store_page_is_whole() does with the result. */
void store_page_checked(struct store *st, uint32_t slot, bool whole);

/**
 * store_find_whole() - store_find() for somebody who will lease what is found
 * @ret_slot: SLOT_NONE: there is none
 * Return: 0; -EAGAIN: the page was damaged over a restart, or lies in lent memory whose lender is gone, and
 * cannot be dropped before its holders release it.
 */
int store_find_whole(struct store *st, const struct tenant *t, const struct chunk_key *key,
                     uint32_t *ret_slot, struct errmsg *e);

/* The page of @key of this tenant, or SLOT_NONE. */
uint32_t store_find(const struct store *st, const struct tenant *t, const struct chunk_key *key);

/* One more, one fewer lease names the page. */
void store_hold(struct store *st, uint32_t slot);
void store_unhold(struct store *st, uint32_t slot);

/* An unheld page goes: out of the index, remembered as a ghost, slot FREE. */
void store_drop(struct store *st, uint32_t slot, enum ghost_reason reason);

/* All pages of @space, none of them held or reserved, in every tenant; their groups too. */
void store_drop_space(struct store *st, struct space *space, enum ghost_reason reason);

/* Everything adds up: pool, queues, accounts. For tests. */
bool store_is_valid(const struct store *st, struct errmsg *e);
