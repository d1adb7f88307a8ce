/* See lease.h. */
#include "daemon/store/lease.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/store/account.h"
#include "daemon/store/journal.h"
#include "daemon/store/store.h"

enum { TABLE_FIRST = 16 };

void lease_init(struct leases *l, struct journal *j, struct account *a, uint32_t session,
                const struct lease_limits *limits)
{
    assert(limits->leases_per_session <= 1u << LEASE_INDEX_BITS);
    *l = (struct leases){.journal = j, .account = a, .session = session, .limits = *limits};
}

/* @table: [n], the larger copy of the present one, or NULL, which frees it. */
static void lease_resize(struct leases *l, struct lease **table, uint32_t n)
{
    if (!table)
        free(l->table);
    l->account->n_lease_places += n - l->n_table;
    l->table = table;
    l->n_table = n;
}

void lease_deinit(struct leases *l)
{
    assert(l->n_held == 0 && l->n_leased == 0);
    lease_drop_room(l);
    lease_resize(l, NULL, 0);
    *l = (struct leases){0};
}

/* ---- room ---- */

static uint32_t lease_table_size(const struct leases *l, uint32_t n_min)
{
    uint32_t n = l->n_table ? l->n_table : TABLE_FIRST;

    while (n < n_min)
        n *= 2;
    return n < l->limits.leases_per_session ? n : l->limits.leases_per_session;
}

static int lease_grow(struct leases *l, uint32_t n_min)
{
    uint32_t n = lease_table_size(l, n_min);
    struct lease **table;

    table = realloc(l->table, n * sizeof(struct lease *));
    if (!table)
        return -ENOMEM;

    memset(table + l->n_table, 0, (n - l->n_table) * sizeof(struct lease *));
    lease_resize(l, table, n);
    return 0;
}

/*
 * A table keeps its size while one lease with a large number is left. All tables of a tenant together grow to
 * at most twice the places of its leases.
 */
static int lease_add_places(struct leases *l, struct errmsg *e)
{
    uint64_t more = lease_table_size(l, l->n_table + 1) - l->n_table;
    int r = 0;

    if (l->n_table > 0 &&
        l->account->n_lease_places + more > 2 * (uint64_t) l->limits.leases_per_tenant + TABLE_FIRST)
        return fail(e, -EDQUOT,
                    "the sessions of tenant %s have tables for %" PRIu32
                    " leases: release the newest leases of sessions that have few",
                    l->account->name, l->account->n_lease_places);
    r = lease_grow(l, l->n_table + 1);
    return r < 0 ? fail(e, r, "out of memory for a lease") : 0;
}

static int lease_check_session(const struct leases *l, uint32_t n, struct errmsg *e)
{
    if (l->n_leases >= l->limits.leases_per_session)
        return fail(e, -EDQUOT, "this session has %" PRIu32 " leases, the maximum: release some",
                    l->n_leases);
    if (n > l->limits.pages_per_session || l->n_leased > l->limits.pages_per_session - n)
        return fail(e, -EDQUOT,
                    "this session has %" PRIu32 " pages in its leases, and %" PRIu32
                    " more would exceed the maximum of %" PRIu32 ": release some leases as a whole",
                    l->n_leased, n, l->limits.pages_per_session);
    return 0;
}

static int lease_check_tenant(const struct leases *l, uint32_t n, struct errmsg *e)
{
    const struct account *a = l->account;
    uint32_t max = l->limits.pages_per_tenant, n_free = journal_holds_free(l->journal);

    if (a->n_leases >= l->limits.leases_per_tenant)
        return fail(e, -EDQUOT, "tenant %s has %" PRIu32 " leases, the maximum: release some", a->name,
                    a->n_leases);
    if (n > max || a->n_leased > max - n)
        return fail(e, -EDQUOT,
                    "tenant %s has %" PRIu32 " pages in its leases, and %" PRIu32
                    " more would exceed the maximum of %" PRIu32 ": release some leases as a whole",
                    a->name, a->n_leased, n, max);
    if (n > n_free || (uint64_t) a->n_leased + n > n_free - n)
        return fail(e, -EDQUOT,
                    "tenant %s has %" PRIu32 " pages in its leases, and all tenants left places for %" PRIu32
                    ", of which it may not take %" PRIu32 ": release some leases as a whole",
                    a->name, a->n_leased, n_free, n);
    return 0;
}

void lease_drop_room(struct leases *l)
{
    free(l->spare);
    l->spare = NULL;
}

int lease_make_room(struct leases *l, uint32_t n, struct errmsg *e)
{
    int r = lease_check_session(l, n, e);

    if (r == 0)
        r = lease_check_tenant(l, n, e);
    if (r < 0)
        return r;

    while (l->first_unused < l->n_table && l->table[l->first_unused])
        l->first_unused++;
    if (l->first_unused == l->n_table)
        r = lease_add_places(l, e);
    if (r < 0)
        return r;

    lease_drop_room(l);
    l->spare = malloc(sizeof(*l->spare) + n * sizeof(uint32_t));
    return l->spare ? 0 : fail(e, -ENOMEM, "out of memory for a lease");
}

/* ---- leases ---- */

static void lease_count(struct leases *l, int n_leases, int n_leased)
{
    l->n_leases += (uint32_t) n_leases;
    l->n_leased += (uint32_t) n_leased;
    l->account->n_leases += (uint32_t) n_leases;
    l->account->n_leased += (uint32_t) n_leased;
}

uint64_t lease_add(struct leases *l, const struct page_handle *pages, uint32_t n)
{
    struct lease *x = take_ptr(l->spare);
    uint32_t at = l->first_unused++;

    *x = (struct lease){
        .id = ++l->journal->head->lease_serial << LEASE_INDEX_BITS | at,
        .granted = true,
        .n_items = n,
    };
    for (uint32_t i = 0; i < n; i++) {
        x->cells[i] = CELL_NONE;
        if (!pages[i].slot)
            continue;

        x->cells[i] = journal_hold_add(l->journal, l->session, i, x->id, pages[i].number);
        x->n_held++;
    }

    l->table[at] = x;
    l->n_granted++;
    l->n_held += x->n_held;
    lease_count(l, 1, (int) n);
    return x->id;
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
    uint32_t at = (uint32_t) (id & ((1u << LEASE_INDEX_BITS) - 1)), n_items;
    int r;

    if (at >= l->limits.leases_per_session) /* an earlier process had a higher limit */
        l->limits.leases_per_session = at + 1;
    r = at < l->n_table ? 0 : lease_grow(l, at + 1);
    if (r < 0)
        return r;
    if (!l->table[at]) {
        l->table[at] = malloc(sizeof(struct lease));
        if (!l->table[at])
            return -ENOMEM;

        *l->table[at] = (struct lease){.id = id};
        lease_count(l, 1, 0);
    }

    if (l->table[at]->id != id)
        return -EBADMSG;

    n_items = l->table[at]->n_items;
    r = lease_restore_item(&l->table[at], item, cell);
    lease_count(l, 0, (int) (l->table[at]->n_items - n_items));
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
    lease_count(l, -1, -(int) x->n_items);
    l->n_granted -= x->granted;
    free(x);
}

static void lease_release_item(struct leases *l, struct store *st, struct lease *x, uint32_t i)
{
    struct page_handle h;

    if (x->cells[i] == CELL_NONE)
        return;

    h = pool_handle(&st->pool, l->journal->holds[x->cells[i]].slot);
    journal_hold_remove(l->journal, x->cells[i]);
    store_unhold(st, &h);
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

int lease_find(const struct leases *l, const struct store *st, uint64_t id, uint32_t item,
               struct page_handle *ret)
{
    uint64_t at = id & ((1u << LEASE_INDEX_BITS) - 1);
    const struct lease *x = at < l->n_table ? l->table[at] : NULL;

    if (!x || x->id != id || !x->granted || item >= x->n_items || x->cells[item] == CELL_NONE)
        return -ESTALE;

    *ret = pool_handle(&st->pool, l->journal->holds[x->cells[item]].slot);
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
