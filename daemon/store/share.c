/* See share.h. */
#include "daemon/store/share.h"

#include <stddef.h>

#include "daemon/loop/log.h"
#include "daemon/store/control.h"
#include "daemon/store/evict.h"
#include "daemon/store/store.h"

enum { SHARE_NEWCOMERS_PART = 32 };

uint64_t share_extents(const struct pool *p, uint64_t bytes)
{
    return bytes / p->extent_bytes + (bytes % p->extent_bytes > 0);
}

static uint64_t share_guaranteed(const struct store *st, const struct tenant *t)
{
    return share_extents(&st->pool, t->guarantee_bytes);
}

/* Extents above the guarantee; negative: the unused part of it. */
static int64_t share_borrowed(const struct store *st, const struct tenant *t)
{
    return (int64_t) t->n_extents - (int64_t) share_guaranteed(st, t);
}

bool share_fits(const struct store *st, const struct tenant *t, uint64_t bytes, uint64_t n_promised)
{
    uint64_t room = st->pool.n_extents_max;

    if (n_promised > room)
        return false;

    room -= n_promised;
    for (const struct tenant *o = st->tenants; o; o = o->next) {
        uint64_t n = o == t ? 0 : share_guaranteed(st, o);

        if (n > room)
            return false;

        room -= n;
    }

    return share_extents(&st->pool, bytes) <= room;
}

/* ---- lending ---- */

/* Unused guaranteed extents of other tenants than @t that must stay free. */
static uint64_t share_kept_back(const struct store *st, const struct tenant *t)
{
    uint64_t n = 0;

    for (const struct tenant *o = st->tenants; o; o = o->next) {
        int64_t unused = -share_borrowed(st, o);

        if (o != t && unused > 0)
            n += ((uint64_t) unused * (100 - st->lendable_percent) + 99) / 100;
    }
    return n;
}

/*
 * The extents of the quota, and one more, since the pages of several groups do not fill extents. A guarantee
 * that an operator set above the quota is met all the same.
 */
bool share_is_at_limit(const struct store *st, const struct tenant *t)
{
    uint64_t by_quota = share_extents(&st->pool, t->quota_bytes) + 1, by_guarantee = share_guaranteed(st, t);

    return t->n_extents >= (by_quota > by_guarantee ? by_quota : by_guarantee);
}

/* Extents that @t must leave free when it borrows. */
static uint64_t share_left_free(const struct store *st, const struct tenant *t)
{
    uint64_t for_newcomers = t->n_extents > 0 ? st->pool.n_extents_max / SHARE_NEWCOMERS_PART : 0;

    return share_kept_back(st, t) + for_newcomers;
}

bool share_may_grow(const struct store *st, const struct tenant *t)
{
    const struct pool *p = &st->pool;

    if (!pool_can_grow(p) || share_is_at_limit(st, t))
        return false;
    return share_borrowed(st, t) < 0 || p->n_extents + 1 + share_left_free(st, t) <= p->n_extents_max;
}

/* An extent without held pages of the tenant that borrowed most, if that is more than @least. */
static struct pool_extent *share_find_idle(const struct store *st, const struct tenant *taker, int64_t least)
{
    struct pool_extent *best = NULL;
    bool has_borrower = false;

    for (const struct tenant *t = st->tenants; t; t = t->next)
        has_borrower |= t != taker && share_borrowed(st, t) > least;
    for (uint32_t i = 0; has_borrower && i < st->pool.n_extents; i++) {
        struct pool_extent *x = st->pool.extents[i];

        if (x->tenant != taker && share_borrowed(st, x->tenant) > least &&
            pool_extent_is_idle(&st->pool, x)) {
            least = share_borrowed(st, x->tenant);
            best = x;
        }
    }

    return best;
}

/* Writes to @t's control page which of its extents is being reclaimed, the oldest first. */
static void share_publish_reclaim(const struct store *st, struct tenant *t)
{
    uint64_t id = 0;

    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        const struct pool_extent *x = st->pool.extents[i];

        if (x->tenant == t && x->reclaimed && (id == 0 || x->id < id))
            id = x->id;
    }
    control_set_reclaim(t, id);
}

static void share_destroy(struct store *st, struct pool_extent *x)
{
    struct tenant *owner = x->tenant;

    for (struct tenant *t = st->tenants; t; t = t->next)
        if (t->awaited_extent == x->id)
            t->awaited_extent = 0;
    pool_extent_destroy(&st->pool, x);
    share_publish_reclaim(st, owner);
}

bool share_take_extent(struct store *st, const struct tenant *t)
{
    int64_t mine = share_borrowed(st, t);
    struct pool_extent *x = NULL;

    if (share_is_at_limit(st, t))
        return false;
    if (mine < 0)
        x = share_find_idle(st, t, 0); /* of any borrower */
    else if (st->pool.n_extents + share_left_free(st, t) <= st->pool.n_extents_max)
        x = share_find_idle(st, t, mine + 1); /* else @t could not add an extent afterwards */
    if (!x)
        return false;

    evict_extent(st, x);
    share_destroy(st, x);
    return true;
}

bool share_destroy_empty(struct store *st, const struct tenant *not_of)
{
    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        struct pool_extent *x = st->pool.extents[i];

        if (x->n_units_used == 0 && x->tenant != not_of) {
            share_destroy(st, x);
            return true;
        }
    }
    return false;
}

bool share_destroy_one(struct store *st, const struct tenant *t)
{
    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        if (st->pool.extents[i]->tenant == t) {
            share_destroy(st, st->pool.extents[i]);
            return true;
        }
    }
    return false;
}

bool share_destroy_retired(struct store *st)
{
    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        if (st->pool.extents[i]->retired && st->pool.extents[i]->n_units_used == 0) {
            share_destroy(st, st->pool.extents[i]);
            return true;
        }
    }
    return false;
}

/* ---- reclaiming ---- */

static uint64_t share_busy_bytes(const struct pool *p, const struct pool_extent *x)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < x->n_units; i++) {
        const struct span *s = x->span_of_unit[i] == UINT32_MAX ? NULL : p->spans[x->span_of_unit[i]];

        if (s && s->first_unit == i)
            bytes += (uint64_t) s->n_busy * s->group->slot_bytes;
    }
    return bytes;
}

/* The borrowed extent with the fewest held bytes that is not being reclaimed yet. */
static struct pool_extent *share_find_borrowed(const struct store *st, const struct tenant *t)
{
    struct pool_extent *best = NULL;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        struct pool_extent *x = st->pool.extents[i];
        uint64_t bytes;

        if (x->tenant == t || pool_extent_is_closed(x) || share_borrowed(st, x->tenant) <= 0)
            continue;

        bytes = share_busy_bytes(&st->pool, x);
        if (bytes < least) {
            least = bytes;
            best = x;
        }
    }

    return best;
}

bool share_reclaim(struct store *st, struct tenant *t)
{
    struct pool_extent *x;

    if (share_borrowed(st, t) >= 0)
        return false;

    t->lacks_space = true;
    if (t->awaited_extent != 0)
        return true;

    x = share_find_borrowed(st, t);
    if (!x)
        return false;

    t->awaited_extent = x->id;
    pool_extent_set_reclaimed(&st->pool, x, true);
    evict_extent(st, x);
    share_publish_reclaim(st, x->tenant);
    log_event(LOG_INFO, "reclaim", "lender=%s borrower=%s extent=%llu bytes=%llu", t->name, x->tenant->name,
              (unsigned long long) x->id, (unsigned long long) share_busy_bytes(&st->pool, x));
    return true;
}

uint64_t share_awaited_bytes(const struct store *st, const struct tenant *t)
{
    const struct pool_extent *x = t->awaited_extent ? pool_extent_find(&st->pool, t->awaited_extent) : NULL;

    return x ? share_busy_bytes(&st->pool, x) : 0;
}

uint64_t share_reclaimed_bytes(const struct store *st, const struct tenant *t)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < st->pool.n_extents; i++)
        if (st->pool.extents[i]->tenant == t && st->pool.extents[i]->reclaimed)
            bytes += share_busy_bytes(&st->pool, st->pool.extents[i]);
    return bytes;
}

void share_tick(struct store *st, uint64_t now_ms, uint64_t patience_ms)
{
    for (struct tenant *t = st->tenants; t; t = t->next) {
        struct pool_extent *x = t->awaited_extent ? pool_extent_find(&st->pool, t->awaited_extent) : NULL;

        if (t->lacks_space)
            t->reclaim_until_ms = now_ms + patience_ms;
        t->lacks_space = false;
        if (!x || now_ms < t->reclaim_until_ms)
            continue;

        t->awaited_extent = 0;
        pool_extent_set_reclaimed(&st->pool, x, false);
        share_publish_reclaim(st, x->tenant);
    }
}
