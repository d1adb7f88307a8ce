/* See kept.h. */
#include "daemon/store/kept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

enum { KEPT_ROOM_MIN = 64, KEPT_PERCENT = 50 };

uint64_t kept_limit_bytes(const struct store *st, const struct tenant *t)
{
    uint64_t most = t->quota_bytes < st->pool.pool_bytes ? t->quota_bytes : st->pool.pool_bytes;

    return most / 100 * KEPT_PERCENT;
}

/* The entry of a kept page. NULL: not kept. */
static struct kept_page *kept_find(const struct page_handle *h)
{
    const struct kept_pages *k = &h->group->tenant->kept;

    if (!h->slot->is_kept)
        return NULL;

    for (uint32_t i = 0; i < k->n; i++)
        if (k->list[i].slot == h->number)
            return &k->list[i];
    return NULL;
}

/* ---- begin ---- */

static int kept_check(const struct store *st, const struct tenant *t, uint64_t bytes, struct errmsg *e)
{
    uint64_t limit = kept_limit_bytes(st, t), all = 0, half = st->pool.pool_bytes / 100 * KEPT_PERCENT;

    for (const struct tenant *x = st->tenants; x; x = x->next)
        all += x->kept.bytes;
    if (t->kept.bytes > limit || bytes > limit - t->kept.bytes)
        return fail(e, -EDQUOT,
                    "tenant %s may have %" PRIu64 " bytes pinned, %d %% of its quota or of the pool, and has "
                    "%" PRIu64 ": unpin other prefixes",
                    t->name, limit, KEPT_PERCENT, t->kept.bytes);
    if (t->kept.n >= KEPT_PAGES_MAX)
        return fail(e, -EDQUOT, "tenant %s has %d pages pinned, the maximum: unpin other prefixes", t->name,
                    KEPT_PAGES_MAX);
    if (all > half || bytes > half - all)
        return fail(e, -EDQUOT,
                    "all tenants have %" PRIu64 " bytes pinned, of at most %" PRIu64 ", %d %% of the pool: "
                    "unpin other prefixes",
                    all, half, KEPT_PERCENT);
    return 0;
}

static int kept_reserve(struct kept_pages *k, struct errmsg *e)
{
    uint32_t n_max = k->n_max > 0 ? k->n_max * 2 : KEPT_ROOM_MIN;
    struct kept_page *list;

    if (k->n < k->n_max)
        return 0;

    list = realloc(k->list, n_max * sizeof(*list));
    if (!list)
        return fail(e, -ENOMEM, "out of memory for pinned pages");

    k->list = list;
    k->n_max = n_max;
    return 0;
}

int kept_begin(struct store *st, const struct page_handle *h, uint64_t until_ms, struct errmsg *e)
{
    struct kept_page *present = kept_find(h);
    struct tenant *t = h->group->tenant;
    uint64_t bytes = h->group->slot_bytes;
    struct kept_pages *k = &t->kept;
    int r;

    if (k->n == 0 || until_ms < k->next_ms)
        k->next_ms = until_ms;
    if (present) {
        present->until_ms = until_ms;
        return 0;
    }

    r = kept_check(st, t, bytes, e);
    if (r == 0)
        r = kept_reserve(k, e);
    if (r < 0)
        return r;

    store_hold(st, h);
    h->slot->is_kept = 1;
    k->list[k->n++] = (struct kept_page){h->number, until_ms};
    k->bytes += bytes;
    return 0;
}

uint64_t kept_left_ms(const struct page_handle *h, uint64_t now_ms)
{
    const struct kept_page *p = kept_find(h);

    if (!p)
        return 0;
    return p->until_ms > now_ms ? p->until_ms - now_ms : 1; /* its time is over at the next tick */
}

/* ---- end ---- */

/* Takes the entry out of the list, in which the last one takes its place. */
static void kept_end_entry(struct store *st, struct kept_pages *k, uint32_t i)
{
    struct page_handle h = pool_handle(&st->pool, k->list[i].slot);

    k->bytes -= h.group->slot_bytes;
    k->list[i] = k->list[--k->n];
    h.slot->is_kept = 0;
    store_unhold(st, &h);
}

void kept_end(struct store *st, const struct page_handle *h)
{
    const struct kept_page *p = kept_find(h);
    struct kept_pages *k = &h->group->tenant->kept;

    if (p)
        kept_end_entry(st, k, (uint32_t) (p - k->list));
}

void kept_end_tenant(struct store *st, struct tenant *t, const uint8_t *table_digest)
{
    struct kept_pages *k = &t->kept;

    for (uint32_t i = k->n; i-- > 0;) {
        const struct group *g = pool_handle(&st->pool, k->list[i].slot).group;

        if (!table_digest || memcmp(g->space->table_digest, table_digest, DIGEST_BYTES) == 0)
            kept_end_entry(st, k, i);
    }
}

void kept_end_space(struct store *st, const struct space *space)
{
    for (struct tenant *t = st->tenants; t; t = t->next)
        for (uint32_t i = t->kept.n; i-- > 0;)
            if (pool_handle(&st->pool, t->kept.list[i].slot).group->space == space)
                kept_end_entry(st, &t->kept, i);
}

void kept_end_extent(struct store *st, const struct pool_extent *x)
{
    struct kept_pages *k = &x->tenant->kept;

    for (uint32_t i = k->n; i-- > 0;)
        if (pool_handle(&st->pool, k->list[i].slot).span->extent == x)
            kept_end_entry(st, k, i);
}

/* ---- time ---- */

static void kept_expire(struct store *st, struct kept_pages *k, uint64_t now_ms)
{
    k->next_ms = UINT64_MAX;
    for (uint32_t i = k->n; i-- > 0;) {
        uint64_t until_ms = k->list[i].until_ms;

        if (until_ms <= now_ms)
            kept_end_entry(st, k, i);
        else if (until_ms < k->next_ms)
            k->next_ms = until_ms;
    }
}

bool kept_tick(struct store *st, uint64_t now_ms)
{
    bool any = false;

    for (struct tenant *t = st->tenants; t; t = t->next) {
        if (t->kept.n > 0 && t->kept.next_ms <= now_ms)
            kept_expire(st, &t->kept, now_ms);
        any |= t->kept.n > 0;
    }
    return any;
}
