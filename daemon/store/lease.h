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

struct journal;
struct store;

struct lease {
    uint64_t id;
    bool granted;
    bool kept; /* listed in a KEEP_LEASES that is not complete yet */
    uint32_t n_items, n_held;
    uint32_t cells[]; /* [n_items] cells of the journal; CELL_NONE: no hold */
};

struct leases {
    struct journal *journal;
    uint32_t session;     /* number, for the journal */
    struct lease **table; /* [n_table], by the low bits of the id; NULL = unused */
    uint32_t n_table, n_max, first_unused;
    uint32_t n_leases, n_granted, n_held; /* n_held: holds of all leases */
};

/* @n_max: at most 1 << LEASE_INDEX_BITS */
void lease_init(struct leases *l, struct journal *j, uint32_t session, uint32_t n_max);
void lease_deinit(struct leases *l); /* every hold was released */

/* Makes room for the next lease_add(). Return: 0; -EDQUOT: too many leases; -ENOMEM. */
int lease_make_room(struct leases *l);

/**
 * lease_add() - record holds that the caller has taken
 * @slots: [n], SLOT_NONE for items that are not part of the lease
 *
 * Return: 0; -EDQUOT: too many leases; -ENOMEM; -ENOSPC: the journal has no room for more holds.
 */
int lease_add(struct leases *l, const uint32_t *slots, uint32_t n, uint64_t *ret_id);

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
 * Finds the slot of item @item of a granted lease. Return: 0; -ESTALE: the lease does not exist, was released
 * or has expired.
 */
int lease_find_slot(const struct leases *l, uint64_t id, uint32_t item, uint32_t *ret_slot);

void lease_release_all(struct leases *l, struct store *st);

/*
 * After a restart: adds cell @cell as item @item of lease @id, which is not granted. Return: 0; -EBADMSG:
 * the item has a cell already, or another lease has the number; -ENOMEM.
 */
int lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell);

/* Ends all grants; holds stay. Return: how many grants ended. */
uint32_t lease_expire(struct leases *l);
