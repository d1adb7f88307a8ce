/* Leases of a session; see lease.h. */
#include "daemon/lease.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store.h"

enum { TABLE_FIRST = 16 };

void leases_init(struct leases *l, uint32_t n_max)
{
    assert(n_max <= 1u << LEASE_INDEX_BITS);
    *l = (struct leases) { .n_max = n_max };
}

void leases_deinit(struct leases *l)
{
    assert(l->n_held == 0);
    free(l->table);
    *l = (struct leases) { 0 };
}

static int grow(struct leases *l)
{
    uint32_t n = l->n_table ? 2 * l->n_table : TABLE_FIRST;
    struct lease **table;

    if (n > l->n_max)
        n = l->n_max;
    if (n == l->n_table)
        return -EDQUOT;
    table = realloc(l->table, n * sizeof(struct lease *));
    if (!table)
        return -ENOMEM;
    memset(table + l->n_table, 0, (n - l->n_table) * sizeof(struct lease *));
    l->first_unused = l->n_table;
    l->table = table;
    l->n_table = n;
    return 0;
}

int leases_make_room(struct leases *l)
{
    while (l->first_unused < l->n_table && l->table[l->first_unused])
        l->first_unused++;
    return l->first_unused < l->n_table ? 0 : grow(l);
}

int leases_add(struct leases *l, const uint32_t *slots, uint32_t n, uint64_t *ret_id)
{
    struct lease *x;
    uint32_t at;
    int r = leases_make_room(l);

    if (r < 0)
        return r;
    x = malloc(sizeof(*x) + n * sizeof(uint32_t));
    if (!x)
        return -ENOMEM;
    at = l->first_unused++;
    *x = (struct lease) { .id = ++l->serial << LEASE_INDEX_BITS | at, .granted = true, .n_items = n };
    for (uint32_t i = 0; i < n; i++) {
        x->slots[i] = slots[i];
        x->n_held += slots[i] != SLOT_NONE;
    }
    l->table[at] = x;
    l->n_leases++;
    l->n_granted++;
    l->n_held += x->n_held;
    *ret_id = x->id;
    return 0;
}

static void drop(struct leases *l, struct lease *x)
{
    uint32_t at = (uint32_t) (x->id & ((1u << LEASE_INDEX_BITS) - 1));

    l->table[at] = NULL;
    if (at < l->first_unused)
        l->first_unused = at;
    l->n_leases--;
    l->n_granted -= x->granted;
    free(x);
}

static void release_item(struct leases *l, struct store *st, struct lease *x, uint32_t i)
{
    if (x->slots[i] == SLOT_NONE)
        return;
    store_unhold(st, x->slots[i]);
    x->slots[i] = SLOT_NONE;
    x->n_held--;
    l->n_held--;
}

int leases_release(struct leases *l, struct store *st, uint64_t id, const uint8_t *bitmap, size_t n_bytes)
{
    uint64_t at = id & ((1u << LEASE_INDEX_BITS) - 1);
    struct lease *x = at < l->n_table ? l->table[at] : NULL;

    if (!x || x->id != id)
        return -ESTALE;
    for (uint32_t i = 0; i < x->n_items; i++)
        if (n_bytes == 0 || (i / 8 < n_bytes && bitmap[i / 8] >> i % 8 & 1))
            release_item(l, st, x, i);
    if (x->n_held == 0)
        drop(l, x);
    return 0;
}

void leases_release_all(struct leases *l, struct store *st)
{
    for (uint32_t at = 0; at < l->n_table; at++) {
        struct lease *x = l->table[at];

        if (!x)
            continue;
        for (uint32_t i = 0; i < x->n_items; i++)
            release_item(l, st, x, i);
        drop(l, x);
    }
}

uint32_t leases_expire(struct leases *l)
{
    uint32_t n = l->n_granted;

    for (uint32_t at = 0; n > 0 && at < l->n_table; at++)
        if (l->table[at])
            l->table[at]->granted = false;
    l->n_granted = 0;
    return n;
}
