/*
 * The leases of one session. A lease has two halves (DESIGN 1). The grant allows messages to name the pages;
 * it ends by release, or when the session shows no sign of life for lease_ms. The hold on each page forbids
 * reuse of the page's memory; it ends only by release or with the process. Each hold has a cell in the
 * journal. The cell is written before the client gets the lease's number, so that a restart finds the hold.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/config/limits.h"

struct account;
struct errmsg;
struct journal;
struct page_handle;
struct store;

struct lease_limits {
    uint32_t leases_per_session, leases_per_tenant;
    uint32_t pages_per_session, pages_per_tenant; /* of leases; a page counts as long as its lease lives */
};

struct lease {
    uint64_t id;
    bool granted;
    bool kept; /* listed in a KEEP_LEASES that is not complete yet */
    uint32_t n_items, n_held;
    uint32_t cells[]; /* [n_items] cells of the journal; CELL_NONE: no hold */
};

struct leases {
    struct journal *journal;
    struct account *account;
    struct lease_limits limits;
    uint32_t session;     /* number, for the journal */
    struct lease **table; /* [n_table], by the low bits of the id; NULL = unused */
    uint32_t n_table, first_unused;
    uint32_t n_leases, n_granted, n_held; /* n_held: holds of all leases */
    uint32_t n_leased;                    /* items of all leases, released ones too: they take memory */
    struct lease *spare;                  /* of lease_make_room(); NULL: none */
};

/* @limits->leases_per_session: at most 1 << LEASE_INDEX_BITS */
void lease_init(struct leases *l, struct journal *j, struct account *a, uint32_t session,
                const struct lease_limits *limits);
void lease_deinit(struct leases *l); /* every hold was released */

/**
 * lease_make_room() - take everything that the next lease_add() of up to @n items needs
 *
 * Called before the request changes anything, so that no page is published whose lease cannot be recorded.
 *
 * A tenant may have no more pages in leases than places for further ones are left in the journal. So however
 * many tenants lease as much as they can, there is room for another one.
 *
 * Return: 0; -EDQUOT: too many leases, or pages in them, of this session or its tenant; -ENOMEM.
 */
int lease_make_room(struct leases *l, uint32_t n, struct errmsg *e);
void lease_drop_room(struct leases *l); /* there will be no lease_add() */

/**
 * lease_add() - record holds that the caller has taken
 * @pages: [n], PAGE_NONE for items that are not part of the lease
 *
 * lease_make_room() returned 0 for as many items or more, and no lease was added since. Return: the id.
 */
uint64_t lease_add(struct leases *l, const struct page_handle *pages, uint32_t n);

/**
 * lease_release() - end holds of a lease
 * @bitmap:  item i is bit i % 8 of byte i / 8, least significant bit first; 1: end its hold
 * @n_bytes: of @bitmap; 0: end all holds
 *
 * Bits beyond the lease and bits of released items are ignored. Return: 0; -ESTALE: the lease does not exist,
 * or was released.
 */
int lease_release(struct leases *l, struct store *st, uint64_t id, const uint8_t *bitmap, size_t n_bytes);

/* Marks a lease that its client listed in KEEP_LEASES; an unknown number is ignored. */
void lease_keep(struct leases *l, uint64_t id);
/* Releases all leases that are not marked, and removes the marks. Return: leases released. */
uint32_t lease_release_unkept(struct leases *l, struct store *st);

/*
 * Finds the page of item @item of a granted lease. Return: 0; -ESTALE: the lease does not exist, was released
 * or has expired.
 */
int lease_find(const struct leases *l, const struct store *st, uint64_t id, uint32_t item,
               struct page_handle *ret);

void lease_release_all(struct leases *l, struct store *st);

/*
 * After a restart: adds cell @cell as item @item of lease @id, which is not granted. Return: 0; -EBADMSG:
 * the item has a cell already, or another lease has the number; -ENOMEM.
 */
int lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell);

/* Ends all grants; holds stay. Return: how many grants ended. */
uint32_t lease_expire(struct leases *l);
