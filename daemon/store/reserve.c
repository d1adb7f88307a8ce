/* See reserve.h. */
#include "daemon/store/reserve.h"

#include <errno.h>
#include <inttypes.h>

#include "base/errmsg.h"
#include "daemon/store/evict.h"
#include "daemon/store/share.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/store/tenant_index.h"

/*
 * One step that frees memory for a slot of @g, the cheapest first: a retired extent without pages; an empty
 * extent of another tenant; an extent that share_take_extent() takes from a borrower; pages of @g's own
 * tenant.
 *
 * Return: whether memory was freed, so that pool_slot_take() may succeed now.
 */
static bool reserve_make_room(struct store *st, struct group *g)
{
    if (share_destroy_retired(st))
        return true;
    if (!share_is_at_limit(st, g->tenant) && share_destroy_empty(st, g->tenant))
        return true;
    return share_take_extent(st, g->tenant) || evict_for_group(st, g);
}

/*
 * The device's memory is used by other processes: continue with the existing extents, as if the pool were
 * full. Extents of other tenants stay: their memory would be free only after all their clients released it.
 */
static bool reserve_is_device_full(int r)
{
    return r == -ENOMEM;
}

/*
 * Room in the index for one page more. If the index cannot grow now, the tenant's oldest page makes room: the
 * tenant then has as many pages as the index takes.
 */
static int reserve_index_room(struct store *st, struct tenant *t, struct errmsg *e)
{
    int r;

    do
        r = tenant_index_make_room(t, &st->pool, e);
    while (r < 0 && evict_oldest(st, t));
    return r;
}

int reserve_slot(struct store *st, struct group *g, uint32_t session, struct page_handle *ret,
                 struct errmsg *e)
{
    struct tenant *t = g->tenant;
    struct span_owner owner = {
        .table_digest = g->space->table_digest,
        .first_head = g->space->layout.shard.first_head,
        .n_heads = g->space->layout.shard.n_heads,
        .place = st->place,
        .session = session,
    };
    struct page_handle h;
    int r;

    if (g->slot_bytes > st->pool.extent_bytes) /* checked first, so that no page is evicted in vain */
        return fail(e, -EFBIG,
                    "a page of %zu bytes does not fit an extent of %" PRIu64 " bytes: raise --extent-bytes",
                    g->page_bytes, st->pool.extent_bytes);
    r = reserve_index_room(st, t, e);
    if (r < 0)
        return r;
    if (!evict_for_quota(st, t, tenant_slot_charge(t, g->slot_bytes)))
        return fail(e, -EDQUOT,
                    "tenant %s has %" PRIu64 " of its %" PRIu64 " bytes in use: %" PRIu64
                    " in pages that are held, %" PRIu64
                    " in arenas of its clients (--arena-bytes for each), %" PRIu64
                    " in indexes and records: release pages, end clients or raise the quota",
                    t->name, tenant_used_bytes(t), t->quota_bytes, t->held_bytes, t->arena_bytes,
                    tenant_overhead_bytes(t));

    do {
        owner.may_grow = share_may_grow(st, t);
        r = pool_slot_take(&st->pool, g, &owner, &h, e);
    } while ((r == -ENOSPC && reserve_make_room(st, g)) ||
             (reserve_is_device_full(r) && evict_for_group(st, g)));
    if (reserve_is_device_full(r))
        return -ENOSPC;
    if (r == -ENOSPC && share_reclaim(st, t))
        return fail(e, -EAGAIN,
                    "tenant %s waits for %" PRIu64
                    " bytes of its guarantee that others borrowed and that are being reclaimed: retry later",
                    t->name, share_awaited_bytes(st, t));
    if (r == -ENOSPC && share_is_at_limit(st, t))
        return fail(
            e, -EDQUOT,
            "tenant %s has %" PRIu32 " extents of %" PRIu64 " bytes, the most for its quota of %" PRIu64
            " bytes, and none of their pages makes room for one of this table, shard and class: release "
            "pages or raise the quota",
            t->name, t->n_extents, st->pool.extent_bytes, t->quota_bytes);
    if (r < 0)
        return r;

    h.slot->session = session;
    t->page_bytes += g->slot_bytes; /* a reservation is charged like a held page */
    t->n_slots++;
    t->held_bytes += g->slot_bytes;
    g->space->n_busy++;
    *ret = h;
    return 0;
}
