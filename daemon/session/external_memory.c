/* See external_memory.h. */
#include "daemon/session/external_memory.h"

#include "daemon/session/reservations.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/retire.h"

static bool external_memory_lends(const struct session *x, const struct pool_extent *extent)
{
    return extent->external && extent->external->session == x->number && !extent->external->gone;
}

uint32_t external_memory_count(const struct session *x)
{
    const struct pool *p = &store_of(x->tenant)->pool;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_extents; i++)
        n += external_memory_lends(x, p->extents[i]);
    return n;
}

/* These slots never get a page again, so a client that still writes there destroys no page. */
static void external_memory_discard_reserved(struct sessions *ss, struct store *st, uint32_t span)
{
    uint32_t n = st->pool.spans[span]->n_fresh_from;

    for (uint32_t i = 0; i < n; i++) {
        struct page_handle h;

        if (!pool_resolve(&st->pool, span << POOL_SLOT_BITS | i,
                          &h)) /* the span was freed with its last slot */
            return;
        if (h.slot->state != SLOT_RESERVED)
            continue;

        reservations_take(ss->list[h.slot->session], &h);
        store_discard(st, &h);
    }
}

static void external_memory_end_one(struct sessions *ss, struct store *st, struct pool_extent *extent)
{
    for (uint32_t i = 0; i < extent->n_units; i++)
        if (extent->span_of_unit[i] != UINT32_MAX)
            external_memory_discard_reserved(ss, st, extent->span_of_unit[i]);
    retire_external(st, extent);
}

void external_memory_end(struct session *x)
{
    struct store *st = store_of(x->tenant);
    bool any = false;

    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        if (!external_memory_lends(x, st->pool.extents[i]))
            continue;
        external_memory_end_one(x->sessions, st, st->pool.extents[i]);
        any = true;
    }
    if (any)
        retire_tick(st);
}
