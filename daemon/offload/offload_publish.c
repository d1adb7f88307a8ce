/*
 * Pages that clients committed, on their way to a shared tier: a bounded queue in the order of their commits,
 * so parents first. What the queue has no room for is not written.
 */
#include <errno.h>
#include <string.h>

#include "daemon/loop/ev.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/store.h"

/* ---- the queue ---- */

static uint32_t offload_publish_key_start(const struct slot *slot)
{
    uint32_t start;

    memcpy(&start, slot->key.bytes, sizeof(start)); /* a hash */
    return start;
}

struct offload_published offload_publish_of(const struct page_handle *h)
{
    return (struct offload_published){h->number, offload_publish_key_start(h->slot), h->slot->generation};
}

void offload_publish_append(struct offload_shared *x, struct offload_published page)
{
    if (x->n_queued == OFFLOAD_PUBLISH_MAX) { /* children of what waits: parents are worth more */
        x->counts.n_dropped++;
        return;
    }
    x->queue[(x->first + x->n_queued++) % OFFLOAD_PUBLISH_MAX] = page;
}

static struct offload_published offload_publish_take(struct offload_shared *x)
{
    struct offload_published page = x->queue[x->first];

    x->first = (x->first + 1) % OFFLOAD_PUBLISH_MAX;
    x->n_queued--;
    return page;
}

/* The page that was taken last is the first one again; its place still has it. */
static void offload_publish_put_back(struct offload_shared *x)
{
    x->first = (x->first + OFFLOAD_PUBLISH_MAX - 1) % OFFLOAD_PUBLISH_MAX;
    x->n_queued++;
}

void offload_note_published(struct offload *o, const struct page_handle *h)
{
    for (unsigned i = 0; o && !o->stopping && i < o->n_tiers; i++) {
        struct offload_tier *t = &o->tiers[i];

        if (!t->shared || !offload_admits(t, h->group->tenant))
            continue;
        offload_publish_append(t->shared, offload_publish_of(h));
        offload_publish_pump(t);
    }
}

/* ---- begin ---- */

/* Begins to write the first page of the queue. Return: that of offload_put_begin(); -EBUSY: it is pinned. */
static int offload_publish_first(struct offload_tier *t)
{
    struct offload_shared *x = t->shared;
    struct offload_published page = offload_publish_take(x);
    struct page_handle h;
    int r;

    if (!store_find_again(t->offload->store, page.slot, page.generation, &h) ||
        offload_publish_key_start(h.slot) != page.key_start || pool_extent_is_closed(h.span->extent) ||
        !t->ops->fits(t->self, h.group->page_bytes)) {
        x->counts.n_dropped++; /* it left memory, or leaves it, or was flushed */
        return 0;
    }
    if (h.slot->pinned) { /* another tier reads it now */
        offload_publish_append(x, page);
        return -EBUSY;
    }

    r = offload_put_begin(t, &h);
    if (r < 0)
        offload_publish_put_back(x);
    return r;
}

void offload_publish_pump(struct offload_tier *t)
{
    struct offload_shared *x = t->shared;
    int r = 0;

    if (!t->ops->is_ready(t->self) || ev_now_ms(t->offload->rooms.ev) < t->pause_until_ms)
        return;

    for (uint32_t n = x->n_queued; n > 0 && t->n_puts < OFFLOAD_PUTS_MAX && (r == 0 || r == -EBUSY); n--)
        r = offload_publish_first(t);
}

void offload_shared_tick(struct offload_tier *t)
{
    struct offload *o = t->offload;
    bool is_ready = t->ops->is_ready(t->self);

    if (is_ready != t->shared->was_ready) {
        t->shared->was_ready = is_ready;
        for (struct tenant *x = o->store->tenants; x; x = x->next)
            offload_announce_filter(o, x);
    }
    if (o->stopping || !is_ready)
        return;
    offload_publish_pump(t);
    if (t->ops->touch)
        offload_refresh_go_on(t);
    offload_refill_go_on(t);
    offload_copies_go_on(t);
}
