/* See lease.h. */
#include "daemon/store/lease.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/journal.h"
#include "daemon/store/store.h"

enum { TABLE_FIRST = 16 };

void lease_init(struct leases *l, struct journal *j, uint32_t session, uint32_t n_max)
{
    assert(n_max <= 1u << LEASE_INDEX_BITS);
    *l = (struct leases){.journal = j, .session = session, .n_max = n_max};
}

void lease_deinit(struct leases *l)
{
    assert(l->n_held == 0);
    free(l->table);
    *l = (struct leases){0};
}

static int lease_grow(struct leases *l, uint32_t n_min)
{
    uint32_t n = l->n_table ? l->n_table : TABLE_FIRST;
    struct lease **table;

    if (n_min > l->n_max)
        return -EDQUOT;

    while (n < n_min)
        n *= 2;
    if (n > l->n_max)
        n = l->n_max;
    table = realloc(l->table, n * sizeof(struct lease *));
    if (!table)
        return -ENOMEM;

    memset(table + l->n_table, 0, (n - l->n_table) * sizeof(struct lease *));
    l->table = table;
    l->n_table = n;
    return 0;
}

int lease_make_room(struct leases *l)
{
    while (l->first_unused < l->n_table && l->table[l->first_unused])
        l->first_unused++;
    return l->first_unused < l->n_table ? 0 : lease_grow(l, l->n_table + 1);
}

/* Records one cell per hold; on failure none. */
static int lease_record_holds(struct leases *l, struct lease *x, const uint32_t *slots)
{
    for (uint32_t i = 0; i < x->n_items; i++) {
        x->cells[i] = CELL_NONE;
        if (slots[i] == SLOT_NONE)
            continue;

        x->cells[i] = journal_hold_add(l->journal, l->session, i, x->id, slots[i]);
        if (x->cells[i] == CELL_NONE) {
            while (i-- > 0)
                if (x->cells[i] != CELL_NONE)
                    journal_hold_remove(l->journal, x->cells[i]);
            return -ENOSPC;
        }

        x->n_held++;
    }

    return 0;
}

int lease_add(struct leases *l, const uint32_t *slots, uint32_t n, uint64_t *ret_id)
{
    struct lease *x;
    uint32_t at;
    int r = lease_make_room(l);

    if (r < 0)
        return r;

    x = malloc(sizeof(*x) + n * sizeof(uint32_t));
    if (!x)
        return -ENOMEM;

    at = l->first_unused;
    *x = (struct lease){
        .id = ++l->journal->head->lease_serial << LEASE_INDEX_BITS | at,
        .granted = true,
        .n_items = n,
    };
    r = lease_record_holds(l, x, slots);
    if (r < 0) {
        free(x);
        return r;
    }

    l->first_unused++;
    l->table[at] = x;
    l->n_leases++;
    l->n_granted++;
    l->n_held += x->n_held;
    *ret_id = x->id;
    return 0;
}

/* Adds an item to *@x, which may move when it grows. */
static int lease_restore_item(struct lease **x, uint32_t item, uint32_t cell)
{
    uint32_t n = (*x)->n_items;

    if (item >= n) {
        struct lease *larger = realloc(*x, sizeof(**x) + (item + 1) * sizeof(uint32_t));

        if (!larger)
            return -ENOMEM;

        for (; n <= item; n++)
            larger->cells[n] = CELL_NONE;
        larger->n_items = n;
        *x = larger;
    }

    if ((*x)->cells[item] != CELL_NONE)
        return -EBADMSG;

    (*x)->cells[item] = cell;
    (*x)->n_held++;
    return 0;
}

int lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell)
{
    uint32_t at = (uint32_t) (id & ((1u << LEASE_INDEX_BITS) - 1));
    int r;

    if (at >= l->n_max) /* an earlier process had a higher limit */
        l->n_max = at + 1;
    r = at < l->n_table ? 0 : lease_grow(l, at + 1);
    if (r < 0)
        return r;
    if (!l->table[at]) {
        l->table[at] = malloc(sizeof(struct lease));
        if (!l->table[at])
            return -ENOMEM;

        *l->table[at] = (struct lease){.id = id};
        l->n_leases++;
    }

    if (l->table[at]->id != id)
        return -EBADMSG;

    r = lease_restore_item(&l->table[at], item, cell);
    if (r == 0)
        l->n_held++;
    return r;
}

static void lease_drop_one(struct leases *l, struct lease *x)
{
    uint32_t at = (uint32_t) (x->id & ((1u << LEASE_INDEX_BITS) - 1));

    l->table[at] = NULL;
    if (at < l->first_unused)
        l->first_unused = at;
    l->n_leases--;
    l->n_granted -= x->granted;
    free(x);
}

static void lease_release_item(struct leases *l, struct store *st, struct lease *x, uint32_t i)
{
    uint32_t slot;

    if (x->cells[i] == CELL_NONE)
        return;

    slot = l->journal->holds[x->cells[i]].slot;
    journal_hold_remove(l->journal, x->cells[i]);
    store_unhold(st, slot);
    x->cells[i] = CELL_NONE;
    x->n_held--;
    l->n_held--;
}

int lease_release(struct leases *l, struct store *st, uint64_t id, const uint8_t *bitmap, size_t n_bytes)
{
    uint64_t at = id & ((1u << LEASE_INDEX_BITS) - 1);
    struct lease *x = at < l->n_table ? l->table[at] : NULL;

    if (!x || x->id != id)
        return -ESTALE;

    for (uint32_t i = 0; i < x->n_items; i++)
        if (n_bytes == 0 || (i / 8 < n_bytes && bitmap[i / 8] >> i % 8 & 1))
            lease_release_item(l, st, x, i);
    if (x->n_held == 0)
        lease_drop_one(l, x);
    return 0;
}

int lease_find_slot(const struct leases *l, uint64_t id, uint32_t item, uint32_t *ret_slot)
{
    uint64_t at = id & ((1u << LEASE_INDEX_BITS) - 1);
    const struct lease *x = at < l->n_table ? l->table[at] : NULL;

    if (!x || x->id != id || !x->granted || item >= x->n_items || x->cells[item] == CELL_NONE)
        return -ESTALE;

    *ret_slot = l->journal->holds[x->cells[item]].slot;
    return 0;
}

void lease_keep(struct leases *l, uint64_t id)
{
    uint64_t at = id & ((1u << LEASE_INDEX_BITS) - 1);

    if (at < l->n_table && l->table[at] && l->table[at]->id == id)
        l->table[at]->kept = true;
}

uint32_t lease_release_unkept(struct leases *l, struct store *st)
{
    uint32_t n = 0;

    for (uint32_t at = 0; at < l->n_table; at++) {
        struct lease *x = l->table[at];

        if (x && !x->kept) {
            for (uint32_t i = 0; i < x->n_items; i++)
                lease_release_item(l, st, x, i);
            lease_drop_one(l, x);
            n++;
        } else if (x) {
            x->kept = false;
        }
    }

    return n;
}

void lease_release_all(struct leases *l, struct store *st)
{
    for (uint32_t at = 0; at < l->n_table; at++)
        if (l->table[at])
            l->table[at]->kept = false;
    (void) lease_release_unkept(l, st);
}

uint32_t lease_expire(struct leases *l)
{
    uint32_t n = l->n_granted;

    for (uint32_t at = 0; n > 0 && at < l->n_table; at++)
        if (l->table[at])
            l->table[at]->granted = false;
    l->n_granted = 0;
    return n;
}
