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
static struct kept_page *kept_find(const struct store *st, uint32_t number)
{
    const struct kept_pages *k = &pool_slot_span(&st->pool, number)->group->tenant->kept;

    if (!pool_slot(&st->pool, number)->is_kept)
        return NULL;

    for (uint32_t i = 0; i < k->n; i++)
        if (k->list[i].slot == number)
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

int kept_begin(struct store *st, struct tenant *t, uint32_t number, uint64_t until_ms, struct errmsg *e)
{
    struct kept_page *present = kept_find(st, number);
    uint64_t bytes = pool_slot_span(&st->pool, number)->group->slot_bytes;
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

    store_hold(st, number);
    pool_slot(&st->pool, number)->is_kept = 1;
    k->list[k->n++] = (struct kept_page){number, until_ms};
    k->bytes += bytes;
    return 0;
}

uint64_t kept_left_ms(const struct store *st, uint32_t number, uint64_t now_ms)
{
    const struct kept_page *p = kept_find(st, number);

    if (!p)
        return 0;
    return p->until_ms > now_ms ? p->until_ms - now_ms : 1; /* its time is over at the next tick */
}

/* ---- end ---- */

/* Takes the entry out of the list, in which the last one takes its place. */
static void kept_end_entry(struct store *st, struct kept_pages *k, uint32_t i)
{
    uint32_t number = k->list[i].slot;

    k->bytes -= pool_slot_span(&st->pool, number)->group->slot_bytes;
    k->list[i] = k->list[--k->n];
    pool_slot(&st->pool, number)->is_kept = 0;
    store_unhold(st, number);
}

void kept_end(struct store *st, uint32_t number)
{
    const struct kept_page *p = kept_find(st, number);
    struct kept_pages *k = &pool_slot_span(&st->pool, number)->group->tenant->kept;

    if (p)
        kept_end_entry(st, k, (uint32_t) (p - k->list));
}

void kept_end_tenant(struct store *st, struct tenant *t, const uint8_t *table_digest)
{
    struct kept_pages *k = &t->kept;

    for (uint32_t i = k->n; i-- > 0;) {
        const struct group *g = pool_slot_span(&st->pool, k->list[i].slot)->group;

        if (!table_digest || memcmp(g->space->table_digest, table_digest, DIGEST_BYTES) == 0)
            kept_end_entry(st, k, i);
    }
}

void kept_end_space(struct store *st, const struct space *space)
{
    for (struct tenant *t = st->tenants; t; t = t->next)
        for (uint32_t i = t->kept.n; i-- > 0;)
            if (pool_slot_span(&st->pool, t->kept.list[i].slot)->group->space == space)
                kept_end_entry(st, &t->kept, i);
}

void kept_end_extent(struct store *st, const struct pool_extent *x)
{
    struct kept_pages *k = &x->tenant->kept;

    for (uint32_t i = k->n; i-- > 0;)
        if (pool_slot_span(&st->pool, k->list[i].slot)->extent == x)
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
