/*
 * The leases of one session. A lease is two things (DESIGN 1): the grant, which messages may name and which
 * ends by release or when the session shows no sign of life for lease_ms; and the hold on each of its pages,
 * which forbids reuse of the bytes and ends only by release or with the process. Each hold has a cell in the
 * journal, written before the lease's number is told to anybody, so that a restart finds it.
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
    bool kept; /* named by a KEEP_LEASES that is not complete */
    uint32_t n_items, n_held;
    uint32_t cells[]; /* [n_items] of the journal, CELL_NONE where nothing is held (any more) */
};

struct leases {
    struct journal *journal;
    uint32_t session;     /* number, for the journal */
    struct lease **table; /* [n_table], by the low bits of the id; NULL = unused */
    uint32_t n_table, n_max, first_unused;
    uint32_t n_leases, n_granted, n_held; /* n_held: holds of all leases */
};

void lease_init(struct leases *l, struct journal *j, uint32_t session,
                uint32_t n_max);     /* n_max <= 1 << LEASE_INDEX_BITS */
void lease_deinit(struct leases *l); /* every hold was released */

/* So that the next lease_add() does not meet the limit. Return: 0; -EDQUOT: too many leases; -ENOMEM. */
int lease_make_room(struct leases *l);

/**
 * lease_add() - remember holds that the caller has taken
 * @slots: [n], SLOT_NONE for items that are not part of the lease
 * Return: 0; -EDQUOT: too many leases; -ENOMEM; -ENOSPC: the journal is full of holds.
 */
int lease_add(struct leases *l, const uint32_t *slots, uint32_t n, uint64_t *ret_id);

/**
 * lease_release() - end the holds whose bits are set (bit i of byte i / 8, least significant first), all if
 * @n_bytes == 0
 *
 * Bits beyond the lease and bits of items already released mean nothing.
 * Return: 0; -ESTALE: no such lease (released before, or never).
 */
int lease_release(struct leases *l, struct store *st, uint64_t id, const uint8_t *bitmap, size_t n_bytes);

/* Its client knows of this lease; an unknown number means nothing. */
void lease_keep(struct leases *l, uint64_t id);
/* Releases what was not kept, forgets what was. Return: leases released. */
uint32_t lease_release_unkept(struct leases *l, struct store *st);

/* The page that item @item of a granted lease holds. Return: 0; -ESTALE: no such lease, or released, or it
 * expired. */
int lease_find_slot(const struct leases *l, uint64_t id, uint32_t item, uint32_t *ret_slot);

void lease_release_all(struct leases *l, struct store *st);

/* After a restart: cell @cell is item @item of lease @id, which is not granted. Return: 0; -EBADMSG: it
 * cannot be; -ENOMEM. */
int lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell);

/* Grants end, holds stay. Return: how many grants ended. */
uint32_t lease_expire(struct leases *l);
